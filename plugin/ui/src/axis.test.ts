import { expect, test } from "vitest";
import { boundsOf, burstOf, layersOf, sidesOf, sumOf } from "./axis";
import * as shop from "./testing/shop";

const { axis } = shop;
const others = (topics: number) => `${topics} others`;

test("the largest topics stand singly, and all others together", () => {
  const steps = ["a", "b", "c", "d", "e", "f"].map((topic, number) => shop.step(topic, number, 10 - number));
  const names = (number: number) => layersOf(axis(steps.slice(0, number)), others).map((one) => one.name);
  expect(names(5)).toEqual(["a", "b", "c", "d", "e"]);
  expect(names(6)).toEqual(["a", "b", "c", "d", "2 others"]);
});

test("a topic keeps its colour beside others and in another order", () => {
  const colorOf = (name: string, ...steps: ReturnType<typeof shop.step>[]) =>
    layersOf(axis(steps), others).find((one) => one.name === name)?.color;
  const alone = colorOf("orders", shop.step("orders", 1, 1));
  expect(colorOf("orders", shop.step("vouchers.expire", 1, 9), shop.step("orders", 1, 1))).toBe(alone);
  const names = ["a", "b", "c", "d", "e"];
  const all = layersOf(axis(names.map((name) => shop.step(name, 1, 1))), others);
  expect(new Set(all.map((one) => one.color)).size).toBe(names.length);
});

test("a topic keeps its colour when others come and go", () => {
  const draw = (names: string[]) =>
    new Map(
      layersOf(axis(names.map((name) => shop.step(name, 1, 1))), others).map((one) => [one.name, one.color]),
    );
  const names = Array.from({ length: 12 }, (_, number) => `topic-${number}`);
  const alone = names.map((name) => draw([name]).get(name));
  names.forEach((name, place) => {
    const [before, after] = [names[(place + 5) % 12] ?? "", names[(place + 7) % 12] ?? ""];
    expect(draw([before, name, after]).size).toBe(3);
    expect(draw([name]).get(name)).toBe(alone[place]);
  });
  // Two with one colour by their names: the second gets another, and has it alone, too.
  const first = draw([
    "vouchers.expire",
    "mails.notify",
    "invoices.export",
    "orders.timeout",
    "orders.expire",
  ]);
  const later = draw(["orders.timeout", "vouchers.expire", "payments.placed"]);
  for (const name of ["orders.timeout", "vouchers.expire"]) expect(later.get(name)).toBe(first.get(name));
});

test("topics that the server has not told apart are among the others, and no burst", () => {
  const steps = ["a", "b", "c", "d", "e"].map((topic) => shop.step(topic, 1, 50));
  const one = { ...axis([...steps, shop.step("", 1, 60_000)]), topics: 300 };
  expect(layersOf(one, others).map(({ name, values }) => [name, values[1]])).toEqual([
    ...["a", "b", "c", "d"].map((name) => [name, 50]),
    ["296 others", 60_050],
  ]);
  expect(burstOf(one)).toBeUndefined();
});

test("a sum with an estimate is one", () => {
  const due = [shop.step("a", 1, 1), shop.step("a", 2, 9, false), shop.step("b", 1, 1)];
  expect(sumOf(axis(due))).toEqual({ exact: false, messages: 11 });
  expect(sumOf(axis(due), 0, 2)).toEqual({ exact: true, messages: 2 });
});

test("messages due before now in the step of now are released", () => {
  const one = { ...axis([shop.step("a", 3, 2), shop.step("a", 60, 5)]), past_messages: 4 };
  expect(sidesOf(one)).toEqual({
    due: { exact: true, messages: 1 },
    released: { exact: true, messages: 6 },
  });
});

test("a burst stands out from the other steps", () => {
  const plan = Array.from({ length: 12 }, (_, number) => shop.step("reminders", number, 200));
  expect(burstOf(axis(plan))).toBeUndefined();
  const quiet = Array.from({ length: 120 }, (_, number) => shop.step("orders", number, 60));
  expect(burstOf(axis(quiet))).toBeUndefined();
  const found = burstOf(axis([...quiet, shop.step("vouchers.expire", 67, 50_000)]));
  expect([found?.topic, found?.messages, found?.at]).toEqual([
    "vouchers.expire",
    50_000,
    "2030-01-05T10:07:00.000Z",
  ]);
  // Few messages are none, even alone.
  expect(burstOf(axis([shop.step("orders", 3, 99)]))).toBeUndefined();
});

test("a part of the axis is named by its instants in either direction", () => {
  const bounds = { at: "2030-01-05T09:02:00.000Z", until: "2030-01-05T09:06:00.000Z" };
  expect(boundsOf(axis([]), 2, 5)).toEqual(bounds);
  expect(boundsOf(axis([]), 5, 2)).toEqual(bounds);
});
