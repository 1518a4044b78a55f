import { fireEvent, screen, waitFor } from "@testing-library/react";
import { expect, test } from "vitest";
import { address, button, follow, hindrances, open, press, rows, shown } from "./testing/page";
import * as shop from "./testing/shop";

const { at } = shop;

/** Where the pointer reaches a step of the chart. */
const stepOf = (step: number) => {
  const found = document.querySelector(`[data-step="${step}"]`);
  if (!found) throw new Error(`There is no step ${step}.`);
  return found;
};
const chart = () => screen.findByRole("img", { name: /^Messages by topic and time\./ });
const words = () => document.querySelector("[data-part=tooltip]")?.textContent;

const many = (due: ReturnType<typeof shop.step>[], more = {}) =>
  shop.overview({ axis: { ...shop.axis(due), ...more } });

test("the axis has released messages at the left of now, and due messages at its right", async () => {
  await open("");
  expect((await chart()).getAttribute("aria-label")).toBe(
    "Messages by topic and time. Released: 5 · Due: 5, 1 h before and after now",
  );
  await shown("now");
  expect(document.querySelectorAll("[data-topic=orders]")).toHaveLength(2);
  expect(document.querySelectorAll("[data-topic=vouchers]")).toHaveLength(2);
  expect(document.querySelectorAll("[data-line]")).toHaveLength(2);
  fireEvent.pointerMove(stepOf(65));
  expect(words()).toBe("2030-01-05 10:05:00 to 10:06:00orders: 3vouchers: 1In all: 4");
  fireEvent.pointerMove(stepOf(58));
  expect(words()).toBe("2030-01-05 09:58:00 to 09:59:00orders: 5In all: 5acked: 3failed: 1");
  expect(await hindrances()).toEqual([]);
});

test("a click on a bar leads to its messages", async () => {
  const { user } = await open("?topic=orders");
  await chart();
  await user.click(stepOf(90));
  await screen.findByRole("heading", { name: "Messages" });
  expect(Object.fromEntries(address())).toEqual({
    from: "2030-01-05T10:30:00.000Z",
    topic: "orders",
    until: "2030-01-05T10:31:00.000Z",
    view: "messages",
  });
});

test("a drag zooms, and a button leads back to now", async () => {
  const { asked } = await open("?span=3d");
  await chart();
  fireEvent.pointerDown(stepOf(70), { button: 0 });
  fireEvent.pointerMove(stepOf(66));
  fireEvent.pointerUp(stepOf(66));
  await waitFor(() =>
    expect(asked("overview").at(-1)).toEqual({
      from_at: "2030-01-05T10:06:00.000Z",
      span: "3d",
      until_at: "2030-01-05T10:11:00.000Z",
    }),
  );
  await press("Back to now");
  await waitFor(() => expect([...address().keys()]).toEqual(["span"]));
});

test("another span is asked for", async () => {
  const { asked } = await open("");
  for (const name of ["15 min", "1 h", "24 h", "3 d"]) await button(name);
  await press("30 d");
  await waitFor(() => expect(asked("overview").at(-1)).toEqual({ span: "30d" }));
});

test("a burst is named with its instant and its topic", async () => {
  await open("", { overview: many([shop.step("orders", 3, 40), shop.step("vouchers.expire", 67, 50_000)]) });
  await shown("50,000 at 10:07 vouchers.expire");
});

test("what was not counted is named, and no topic is left out in silence", async () => {
  const due = [shop.step("orders", 65, 3), shop.step("vouchers", 65, 9_000, false)];
  await open("", { overview: many(due) });
  await shown(/^Counted 1 of 2 topics\. Paler bars are estimates\./);
  await screen.findByRole("heading", { name: "Released: 0 · Due: ≈\u00a09,003, 1 h before and after now" });
  fireEvent.pointerMove(stepOf(65));
  expect(words()).toContain("vouchers: ≈\u00a09,000orders: 3In all: ≈\u00a09,003");
});

test("topics that there was no time for may be missing, and the view says so", async () => {
  await open("", { overview: many([shop.step("orders", 65, 3)], { complete: false }) });
  await screen.findByRole("heading", {
    name: "Released: at least 0 · Due: at least 3, 1 h before and after now",
  });
  await shown(/There was no time for all topics/);
});

test("the axis as a list has links for the keyboard", async () => {
  await open("");
  await press("As a list");
  expect(await rows("Messages by time")).toEqual([
    ["From", "Topic", "Messages"],
    ["2030-01-05 09:58:00", "orders", "5"],
    ["2030-01-05 10:05:00", "orders", "3"],
    ["2030-01-05 10:05:00", "vouchers", "1"],
    ["2030-01-05 10:30:00", "vouchers", "1"],
  ]);
  const [past, ahead] = ["2030-01-05 09:58:00", "2030-01-05 10:30:00"].map((name) =>
    screen.getByRole("link", { name }).getAttribute("href"),
  );
  expect(past).toContain("state=all");
  expect(ahead).toContain("from=2030-01-05T10%3A30%3A00.000Z&topic=vouchers&until=2030");
  expect(await hindrances()).toEqual([]);
});

test("a beginning that is no instant is told, and now stays in the middle", async () => {
  const { asked } = await open("?from=garbage");
  expect((await screen.findByRole("alert", { hidden: true })).textContent).toContain(
    "“garbage” is no instant with its time zone.",
  );
  await chart();
  expect(asked("overview")[0]).toEqual({ span: "1h" });
  await follow(`?from=${encodeURIComponent(at(-60))}`);
  await screen.findByRole("heading", { name: /2030-01-05 09:00:00 to 2030-01-05 11:00:00$/ });
});
