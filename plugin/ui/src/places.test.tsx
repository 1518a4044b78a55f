// The pages of a topic and of a group, and the ways that lead there.
import { screen, within } from "@testing-library/react";
import { expect, test } from "vitest";
import { hindrances, open, refused, rows, shown } from "./testing/page";
import { groupStory } from "./groupStory";
import * as shop from "./testing/shop";

const { NOW, at, group, groups } = shop;

test.each<[string, Partial<ReturnType<typeof group>>, string]>([
  [
    "paused with ready messages",
    { dead: 1, paused_at: at(-120), ready: 1_999, oldest_deliver_at: at(-60) },
    "Paused for 2 h: 1,999 ready messages. The group receives nothing until it is resumed. It has 1 dead letter.",
  ],
  ["paused", { paused_at: at(-2) }, "Paused for 2 min. No message is ready."],
  [
    "abandoned",
    { abandoned_since: at(-60), idle_since: at(-90), kept_messages: 7, ready: 9 },
    "Abandoned: nothing received for 1 h. 7 messages past retention are kept for it.",
  ],
  [
    "stalled",
    { idle_since: at(-90), oldest_deliver_at: at(-95), ready: 10_000 },
    "Stalled: nothing received for 1 h 30 min, though at least 10,000 ready messages wait.",
  ],
  [
    "behind",
    { inflight: 3, oldest_deliver_at: at(-3), ready: 1, waiting_retry: 1 },
    "Behind: 1 ready message, the oldest for 3 min; in flight: 3. 1 message waits for a retry.",
  ],
  [
    "up to date",
    { inflight_is_exact: false, waiting_retry: 2 },
    "Up to date: no message is ready; in flight: not counted. 2 messages wait for a retry.",
  ],
])("a group that is %s says so in a sentence", (_, numbers, words) => {
  expect(groupStory(group(numbers), NOW)).toBe(words);
});

test("the page of a group has its sentence, its actions, and its leases, retries and dead letters alone", async () => {
  const reads = { groups: groups([group({ paused_at: at(-120), ready: 5 })]) };
  const page = await open("?view=group&group=ship&topic=orders", reads);
  expect(await screen.findByRole("heading", { name: "Group ship on orders" })).toBeTruthy();
  expect(await shown(/^Paused for 2 h: 5 ready messages\./)).toBeTruthy();
  const [numbers] = await rows("Consumer groups");
  // What the heading says stands in no column.
  expect(numbers?.slice(0, 2)).toEqual(["Ready", "Oldest of these"]);
  for (const name of ["Leases", "Retries", "Dead letters"]) {
    const [head] = await rows(name);
    expect(head).not.toContain("Group");
    expect(head).not.toContain("Topic");
  }
  for (const path of ["groups", "leases", "retries", "dead-letters"])
    expect(page.asked(path)[0]).toMatchObject({ group: "ship", topic: "orders" });
  expect(await screen.findByRole("button", { name: "Resume" })).toBeTruthy();
  expect(document.querySelector("input[name=group], input[name=topic]")).toBeNull();
  expect(await hindrances()).toEqual([]);
});

test("a group that is named without a topic is listed on all that it reads", async () => {
  const reads = { groups: groups([group(), group({ topic: "vouchers" })]) };
  const page = await open("?view=group&group=ship", reads);
  expect((await rows("Consumer groups")).map((cells) => cells[1])).toEqual(["Topic", "orders", "vouchers"]);
  expect(page.asked("groups")[0]).toEqual({ group: "ship" });
  expect(page.asked("leases")).toEqual([]);
});

test("a group that is not there is told", async () => {
  await open("?view=group&group=gone&topic=orders", { groups: groups([]) });
  expect(await shown("The group gone does not read orders, or was deleted.")).toBeTruthy();
});

test("the page of a topic has its numbers, settings, groups and its time axis", async () => {
  const page = await open("?view=topic&topic=orders");
  expect(await screen.findByRole("heading", { name: "Topic orders" })).toBeTruthy();
  expect((await rows("Topics"))[1]?.slice(0, 2)).toEqual(["DELAY", "≈\u00a0419,066"]);
  expect((await rows("Consumer groups"))[1]?.[0]).toBe("ship");
  expect(await screen.findByRole("img", { name: /^Messages by topic and time/ })).toBeTruthy();
  const settings = within(
    (await screen.findByRole("heading", { name: "Settings" })).closest("section") ?? document.body,
  );
  const values = settings.getAllByRole("definition").map((one) => one.textContent);
  expect(values).toEqual(["4", "15 ms", "1 d", "refused", "3 d", "30 d", "1 s, 5 s", "2030-01-04 10:00:00"]);
  expect(page.asked("overview").at(-1)).toMatchObject({ topic: "orders" });
  expect(page.asked("groups")[0]).toEqual({ topic: "orders" });
  expect(await hindrances()).toEqual([]);
});

test("a topic that is not there is told", async () => {
  await open("?view=topic&topic=gone", {
    "topics/one": () => refused(404, "UnknownTopic", 'there is no topic "gone"'),
  });
  expect(await shown('there is no topic "gone"')).toBeTruthy();
});

test.each([
  ["?view=topics", "Topics", 1, "view=topic&topic=orders"],
  ["?view=groups", "Consumer groups", 1, "view=group&group=ship&topic=orders"],
  ["?view=leases", "Leases", 2, "view=group&group=ship&topic=orders"],
  ["?view=retries", "Retries", 1, "view=group&group=bill&topic=orders"],
  ["?view=messages", "Messages", 1, "view=topic&topic=orders"],
  ["?view=watchers", "Watchers", 2, "broker=shop&view=topic&topic=orders"],
  ["?view=schedules", "Schedules", 1, "view=topic&topic=orders"],
])("the list of %s leads to the pages of its topics and groups", async (search, table, _, query) => {
  await open(search);
  const list = within(await screen.findByRole("table", { name: table }));
  const queries = list.getAllByRole("link").map((one) => one.getAttribute("href")?.split("?")[1]);
  expect(queries).toContain(query);
});
