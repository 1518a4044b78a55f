import { expect, test } from "vitest";
import { keepGroups } from "./keepGroups";
import * as shop from "./testing/shop";

const FAULT = {
  group: "push",
  kind: "dead_letters" as const,
  number: 3,
  others: 0,
  since_at: null,
  topic: "orders",
};
const whole = shop.pulse({ dead: 3, faults: [FAULT], groups_at: shop.at(-2), groups_to: null });
const NONE = { dead: null, faults: null, groups_at: null };

test.each([
  ["some groups", { dead: 0, faults: [], groups_at: shop.NOW, groups_to: "mails" }],
  ["no group", NONE],
])("where there was time for %s, what was known of all stays, and the rest is new", (_, some) => {
  const answer = shop.pulse({ ...some, waiting: 9 });
  expect(keepGroups(whole, answer)).toEqual({ ...whole, waiting: 9 });
});

test("a reading of all groups takes its place, and after five minutes any", () => {
  const next = shop.pulse({ dead: 0, faults: [], groups_at: shop.NOW });
  expect(keepGroups(whole, next)).toBe(next);
  const late = shop.pulse({ ...NONE, now_at: shop.at(4) });
  expect(keepGroups(whole, late)).toBe(late);
});

test("other answers stay as they are", () => {
  expect(keepGroups(undefined, whole)).toBe(whole);
  expect(keepGroups({ groups: [], groups_to: null }, { groups: [], groups_to: "a" })).toEqual({
    groups: [],
    groups_to: "a",
  });
});
