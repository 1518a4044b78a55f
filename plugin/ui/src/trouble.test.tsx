// What the page says and does while an answer fails, is late, or does not arrive.
import { screen } from "@testing-library/react";
import { expect, test, vi } from "vitest";
import { follow, later, open, shown } from "./testing/page";
import * as shop from "./testing/shop";

const NO_WATCHERS = { "duewheel/api/watchers": { more: false, now_at: shop.NOW, watchers: [] } };

const verdict = () => screen.queryByLabelText("Verdict")?.textContent ?? "";
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
  await vi.waitFor(() => expect(asked).toBe(2));
  expect(verdict()).toBe("");
  await give(shop.pulse({ wheels: [] }));
  await shown(/^No wheel running/);
});
