// What the page says and does while an answer fails, is late, or does not arrive.
import { act, fireEvent, screen, waitFor } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import {
  address,
  select,
  close,
  confirm,
  dialog,
  follow,
  later,
  open,
  press,
  refused,
  shown,
  told,
} from "./testing/page";
import type { Schemas } from "./api";
import * as shop from "./testing/shop";

const SECOND = 1000;

afterEach(() => {
  vi.useRealTimers();
});

const NO_WATCHERS = { "duewheel/api/watchers": { more: false, now_at: shop.NOW, watchers: [] } };

const verdict = () => screen.queryByLabelText("Verdict")?.textContent ?? "";
/** Stop the clocks of the page, which `pass` moves. */
const stopClocks = () => vi.useFakeTimers({ shouldAdvanceTime: true });
const pass = (seconds: number) => act(() => vi.advanceTimersByTimeAsync(seconds * SECOND));

test("another broker's verdict is not shown while the first answer of a broker is awaited", async () => {
  const { answer, give } = later<ReturnType<typeof shop.pulse>>();
  let asked = 0;
  await open(
    "?broker=shop",
    { pulse: () => (asked++ === 0 ? shop.pulse() : answer) },
    { brokers: [{ connection_id: "other", may_act: true, may_read_bodies: true }], others: NO_WATCHERS },
  );
  await shown("All on time");
  await follow("?broker=other");
  await waitFor(() => expect(asked).toBe(2));
  expect(verdict()).toBe("");
  await give(shop.pulse({ wheels: [] }));
  await shown(/^No wheel running/);
});

test("a verdict that is old is not green, and tells its age", async () => {
  stopClocks();
  let asked = 0;
  const { answer } = later<ReturnType<typeof shop.pulse>>();
  await open(
    "?view=topics",
    { pulse: () => (asked++ === 0 ? shop.pulse() : answer) },
    { others: NO_WATCHERS },
  );
  await shown("All on time");
  await pass(30);
  expect(verdict()).toMatch(/^State (2|3)\d s ago: All on time$/);
});

test("a request without an answer fails after a minute", async () => {
  stopClocks();
  let asked = 0;
  const { answer } = later<ReturnType<typeof shop.pulse>>();
  await open(
    "?view=topics",
    { pulse: () => (++asked === 2 ? answer : shop.pulse()) },
    { others: NO_WATCHERS },
  );
  await shown("All on time");
  await pass(70);
  expect(verdict()).toMatch(/^State unknown: Airflow's API server does not answer/);
  await pass(15);
  expect(verdict()).toBe("All on time");
});

test("next to problems the verdict says that others may not be read", async () => {
  await open("?view=topics", { pulse: shop.pulse({ faults: null, wheels: [] }) });
  await shown(/^No wheel running/);
  await shown("Not all numbers could be read in time");
});

test.each([503, 502, 401, 0])(
  "a list that stands still is asked for again after failure %i",
  async (status) => {
    stopClocks();
    let isDown = true;
    let asked = 0;
    await open("?view=messages&topic=orders", {
      messages: () => {
        asked += 1;
        if (!isDown) return shop.messages([shop.message(1)]);
        if (status === 0) throw new TypeError("Failed to fetch");
        return refused(status, "BrokerUnreachable", "It is down.");
      },
    });
    await screen.findByRole("alert");
    isDown = false;
    await pass(11);
    await waitFor(() => expect(screen.queryByRole("alert")).toBeNull());
    // From then on it stands still.
    const before = asked;
    await pass(60);
    expect(asked).toBe(before);
  },
);

test.each([422, 504])("a list that was refused with %i is not asked for again by itself", async (status) => {
  stopClocks();
  let asked = 0;
  await open("?view=messages&topic=orders", {
    messages: () => {
      asked += 1;
      return refused(status, "Refused", "No.");
    },
  });
  await screen.findByRole("alert");
  const before = asked;
  await pass(60);
  expect(asked).toBe(before);
});

test("an answer that arrives in part is an outage", async () => {
  const broken = new Response("{", { status: 200 });
  await open("?view=messages&topic=orders", { messages: () => broken });
  expect((await screen.findByRole("alert")).textContent).toMatch(/^Airflow's API server does not answer/);
});

test("Back waits for the end of an act, whose outcome is shown", async () => {
  const { answer, give } = later<Schemas["Outcomes"]>();
  await open(
    "?broker=shop&view=schedules",
    { messages: shop.messages([shop.message(1)]) },
    { acts: { "messages/recall": () => answer } },
  );
  fireEvent.click(await screen.findByRole("link", { name: "Messages" }));
  await select("Select all shown");
  await press("Recall");
  await confirm("Recall");
  const back = () =>
    act(async () => {
      const gone = new Promise((tell) => addEventListener("popstate", tell, { once: true }));
      history.back();
      await gone;
    });
  await back();
  await waitFor(() => expect(address().get("view")).toBe("messages"));
  await dialog();
  await give({
    outcomes: [
      { deliver_at: null, detail: null, message_id: shop.id(1), new_message_id: null, outcome: "recalled" },
    ],
  });
  await waitFor(async () => expect(await told()).toBe("1 recalled: never delivered"));
  await close();
  await back();
  await waitFor(() => expect(address().get("view")).toBe("schedules"));
});

test("a verdict that an expired login hides leads to the login", async () => {
  await open("?view=schedules", { pulse: () => refused(401, "NotLoggedIn", "No.") });
  await shown("State unknown: Your login has expired.");
  const link = await screen.findByRole("link", { name: "Log in" });
  expect(link.getAttribute("href")).toMatch(/auth\/login\?next=/);
});
