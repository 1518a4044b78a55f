import { expect, test } from "vitest";
import type { Schemas } from "./api";
import { storyOf } from "./story";
import { at, entry, one } from "./testing/shop";

type Entry = Schemas["HistoryEntry"];

const told = (history: Entry[], more: Partial<Schemas["OneMessage"]> = {}) =>
  storyOf(one({ history, ...more }));

const sent = entry("Initialized", null, { at: at(-60) });
const waits = entry("Timing", null, { at: at(-60), until_at: at(-20) });
const released = entry("Ready", null, { at: at(-20) });
const taken = entry("Inflight", "ship", { at: at(-19), until_at: at(-18) });
const retry = (more: Partial<Entry> = {}) =>
  entry("WaitingRetry", "ship", { at: at(-18), attempt: 2, reason: "409", until_at: at(-10), ...more });

test.each([
  [[sent, entry("Timing", null, { at: at(-60), until_at: at(5) })], "Waiting, due in 5 min."],
  [[sent, waits, released], "Released 20 min ago. No group has received it."],
  [[sent, waits, released, entry("Acked", "ship", { at: at(-5) })], "Handled 5 min ago."],
  [[released, entry("Acked", "ship", { at: at(-5), attempt: 3 })], "Handled 5 min ago, at attempt 3."],
  [[released, taken], "In flight for 19 min."],
  [[released, { ...taken, attempt: 2 }], "In flight for 19 min, at attempt 2."],
  [[released, retry({ until_at: at(2) })], "Failed once, last: 409. The next attempt is in 2 min."],
  [
    [released, retry({ attempt: 4, until_at: at(2) })],
    "Failed 3 times, last: 409. The next attempt is in 2 min.",
  ],
  [[released, retry({ attempt: 1, reason: "given back" })], "Comes again in 0 ms: given back."],
  [[released, retry({ attempt: 5, reason: "redriven: 409" })], "Comes again in 0 ms: redriven: 409."],
  [
    [released, retry(), entry("Ready", "ship", { attempt: 2 })],
    "Ready for attempt 2 since 30 min, and not received yet.",
  ],
  [
    [released, entry("DLQ", "ship", { attempt: 3 })],
    "Failed 3 times, last: no reason was given. A dead letter for 30 min.",
  ],
  [[released, entry("Skipped", "ship", { reason: "paid" })], "Skipped 30 min ago: paid."],
  [[waits, entry("Deleted", null, { reason: "answered" })], "Answered 35 min before its timeout."],
])("a history is a sentence: %#", (history, sentence) => {
  expect(told(history).map((line) => line.sentence)).toEqual([sentence]);
});

test("a message that is due and not released says so", () => {
  expect(told([sent, waits], { deliver_at: at(-2) })[0]?.sentence).toBe(
    "Due 2 min ago, and not released yet.",
  );
});

test("each state lasts until the next one, the last one until now or until its instant", () => {
  const minutes = (history: Entry[]) =>
    told(history)[0]?.stretches.map(({ from, state, to }) => [state, (to - from) / 60_000]);
  expect(minutes([sent, waits, released, taken, retry()])).toEqual([
    ["Timing", 40],
    ["Ready", 1],
    ["Inflight", 1],
    ["WaitingRetry", 18],
  ]);
  expect(minutes([released, taken, retry({ until_at: at(7) })])?.at(-1)).toEqual(["WaitingRetry", 25]);
  expect(minutes([released, taken])?.at(-1)).toEqual(["Inflight", 19]);
  expect(minutes([released, entry("Acked", "ship", { at: at(-5) })])?.at(-1)).toEqual(["Acked", 0]);
});
