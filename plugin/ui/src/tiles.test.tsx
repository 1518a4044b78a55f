import { cleanup, screen, within } from "@testing-library/react";
import { expect, test, vi } from "vitest";
import { hindrances, open } from "./testing/page";
import type { Schemas } from "./api";
import * as shop from "./testing/shop";

const { NOW, at } = shop;

/** The tiles once their numbers are there: of each its label, number and note. */
const tiles = async () => {
  const region = await screen.findByRole("region", { name: "State of the broker" });
  await vi.waitFor(() => expect(region.textContent).not.toContain("…"));
  return [...region.children].map((one) =>
    [...one.children].map((part) => part.textContent.trim()).join("|"),
  );
};
const links = () =>
  within(screen.getByRole("region", { name: "State of the broker" }))
    .getAllByRole("link")
    .map((one) => one.getAttribute("href"));

const late = (p99_seconds: number): Schemas["TopicLateness"] => ({
  by_wheel: true,
  newest_at: NOW,
  p50_seconds: 0.012,
  p99_seconds,
  ticks: 3,
  topic: "orders",
});

test("six tiles tell the state of the broker, and lead to its problems", async () => {
  await open("", {
    pulse: shop.pulse({
      dead: 5_000,
      lag: shop.group({ oldest_deliver_at: at(-180) }),
      late: late(61),
      overdue: [{ due_at: at(-12), topic: "orders" }],
      overdue_messages: [shop.step("orders", 0, 7)],
      waiting: 419_066,
      waiting_is_exact: false,
      wheels: [],
    }),
  });
  const day = "07:00 1 s, 08:00 13 h";
  await screen.findByRole("img", { name: `The worst topic in each hour of the last day: ${day}` });
  expect(await tiles()).toEqual([
    `Lateness p99, last 5 min|1 min 1 s|p50 12 ms, orders|${day}`,
    "Overdue|7|orders since 12 min",
    "Due in the next hour|5|",
    "Waiting|≈\u00a0419,066|",
    "Oldest ready message|3 h|ship",
    "Dead letters|5,000|",
  ]);
  expect(links()).toEqual([
    "/shop/plugin/duewheel?view=topic&topic=orders",
    "/shop/plugin/duewheel?view=messages&topic=orders",
    "/shop/plugin/duewheel?view=group&group=ship&topic=orders",
    "/shop/plugin/duewheel?view=dead",
  ]);
  expect(await hindrances()).toEqual([]);
});

test("a quiet broker has quiet tiles", async () => {
  await open("");
  expect((await tiles()).map((one) => one.split("|").slice(0, 2).join(": "))).toEqual([
    "Lateness p99, last 5 min: nothing released",
    "Overdue: 0",
    "Due in the next hour: 5",
    "Waiting: 5",
    "Oldest ready message: none",
    "Dead letters: 0",
  ]);
});

test("a number that is older than ten seconds tells its age", async () => {
  const told: (string | undefined)[] = [];
  const pulses = [
    shop.pulse({ dead: 2, groups_at: "2030-01-05T09:59:50Z" }),
    shop.pulse({ dead: 2, groups_at: "2030-01-05T09:59:15Z" }),
    shop.pulse({ dead: null, groups_at: null }),
  ];
  for (const pulse of pulses) {
    await open("", { pulse });
    told.push((await tiles()).at(-1));
    cleanup();
  }
  expect(told).toEqual(["Dead letters|2|", "Dead letters|2|45 s ago", "Dead letters|not read in time|"]);
  await open("", { overview: shop.overview({ age_seconds: 70 }), pulse: shop.pulse({ age_seconds: 40 }) });
  expect((await tiles()).map((one) => one.split("|")[2])).toEqual([
    "40 s ago",
    "40 s ago",
    "1 min 10 s ago",
    "40 s ago",
    "",
    "",
  ]);
});

test("of several overdue topics the tile has the sum, and says if it is at least that", async () => {
  const topics = ["a", "b", "c", "d", "e", "f"];
  await open("", {
    pulse: shop.pulse({
      overdue: topics.map((topic) => ({ due_at: at(-2), topic })),
      overdue_has_more: true,
      overdue_messages: topics.slice(0, 5).map((topic) => shop.step(topic, 0, 2, topic !== "e")),
    }),
  });
  expect((await tiles())[1]).toBe("Overdue|≈\u00a010|at least 6 topics since 2 min");
});

test("dead letters of groups that there was no time for are at least so many", async () => {
  const told: (string | undefined)[] = [];
  for (const dead of [2_400, 0]) {
    await open("", { pulse: shop.pulse({ dead, groups_to: "orders" }) });
    told.push((await tiles()).at(-1)?.split("|")[1]);
    cleanup();
  }
  expect(told).toEqual(["at least 2,400", "not read in time"]);
});

test("the numbers of the next hour stay those of all topics while the axis shows one", async () => {
  const { asked } = await open("?topic=orders&span=30d");
  await tiles();
  expect(asked("overview")).toContainEqual({ span: "1h" });
  expect(asked("overview")).toContainEqual({ span: "30d", topic: "orders" });
});
