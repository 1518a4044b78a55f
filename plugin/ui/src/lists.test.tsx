// What all lists have alike: a search, pills for filters, arrows, files, and lines in place of what is not there yet.
import { screen, within } from "@testing-library/react";
import { expect, test } from "vitest";
import * as page from "./testing/page";
import * as shop from "./testing/shop";

test("a list that is shown whole is searched, and says how many rows match", async () => {
  const leases = Array.from({ length: 12 }, (_, number) =>
    shop.lease({ consumer: `worker-${number}`, lease_id: `1.1.0.${number}.1` }),
  );
  const { user } = await page.open("?view=leases", { leases: { leases, more: false, now_at: shop.NOW } });
  await user.type(await screen.findByLabelText("Search in Leases"), "WORKER-1");
  await page.shown("3 of 12");
  expect((await page.rows("Leases")).length).toBe(1 + 3);
  await user.type(screen.getByLabelText("Search in Leases"), "9");
  await page.shown("0 of 12");
  // A short list is read without one.
  expect(screen.queryByLabelText("Search in Waiting consumers")).toBeNull();
});

test("a filter that is set stands as a pill, and goes with it from the address", async () => {
  await page.open("?view=messages&topic=orders&key=order-&from=2030-01-05T09:00:00Z");
  const pills = within(await screen.findByRole("group", { name: "Filters that are set" }));
  expect(pills.getByText("Due from: 2030-01-05 09:00:00")).toBeTruthy();
  await page.press("Remove the filter Topic");
  expect(page.address().get("topic")).toBeNull();
  expect(page.address().get("key")).toBe("order-");
  await page.press("Remove all");
  expect([...page.address().keys()]).toEqual(["view"]);
  expect(screen.queryByRole("group", { name: "Filters that are set" })).toBeNull();
});

test.each([
  ["topics&name=ord", "topics", "?name_contains=ord"],
  ["groups&topic=orders", "groups", "?topic=orders&sort=topic"],
  ["leases&group=ship", "leases", "?group=ship"],
  ["messages&topic=orders", "messages", "?state=waiting&topic=orders"],
  ["watchers", "watchers", "?"],
  ["schedules", "schedules", "?"],
])("the list of %s is exported with its filter", async (view, list, query) => {
  await page.open(`?view=${view}`);
  const file = await screen.findByRole("link", { name: "Export CSV" });
  const url = new URL(file.getAttribute("href") ?? "");
  expect(url.pathname.endsWith(`/${list}/export`)).toBe(true);
  expect(Object.fromEntries(url.searchParams)).toEqual({
    ...Object.fromEntries(new URLSearchParams(query)),
    format: "csv",
  });
});

test.each(["messages&topic=orders", "topics", "groups", "dead&group=ship", "watchers", "waits"])(
  "the list %s has its instant, Refresh and Columns in one line",
  async (view) => {
    await page.open(`?view=${view}`);
    const line = (await screen.findByRole("button", { name: "Refresh" })).closest("[data-part=list-head]");
    expect(within(line as HTMLElement).getByRole("button", { name: /^Columns/ })).toBeTruthy();
    expect(within(line as HTMLElement).getByText(/^As of/)).toBeTruthy();
    if (/messages|dead/.test(view))
      expect(await within(line as HTMLElement).findByText(/^\d+ of \d+/)).toBeTruthy();
  },
);

test.each([
  ["topics", "Topics", { topics: { next: null, now_at: shop.NOW, topics: [shop.topic()] } }, "1"],
  [
    "topics",
    "Topics",
    { topics: { next: "orders", now_at: shop.NOW, topics: [shop.topic()] } },
    "at least 1",
  ],
  ["topics&after=a", "Topics", { topics: { next: null, now_at: shop.NOW, topics: [shop.topic()] } }, ""],
  ["groups", "Groups", { groups: shop.groups([shop.group(), shop.group({ group: "bill" })]) }, "2"],
  ["groups", "Groups", { groups: { ...shop.groups([shop.group()]), groups_to: "orders" } }, "at least 1"],
  [
    "leases",
    "Open leases, next to end first",
    { leases: { leases: [shop.lease()], more: true, now_at: shop.NOW } },
    "at least 1",
  ],
  ["schedules", "Schedules", { schedules: { now_at: shop.NOW, schedules: [] } }, ""],
])("the heading of %s has the number of its rows", async (view, title, reads, words) => {
  await page.open(`?view=${view}`, reads);
  const heading = await screen.findByRole("heading", { name: title });
  await screen.findByRole(words === "" && view === "schedules" ? "status" : "table");
  expect(heading.nextElementSibling?.textContent ?? "").toBe(words);
});

test("while another question is asked, no heading has the number of the one before", async () => {
  const { answer } = page.later<ReturnType<typeof shop.groups>>();
  await page.open("?view=groups", {
    groups: (query) => (query.get("group") ? answer : shop.groups([shop.group()])),
  });
  const heading = await screen.findByRole("heading", { name: "Groups" });
  await page.shown("As of 2030-01-05 10:00:00");
  expect(heading.nextElementSibling?.textContent).toBe("1");
  await page.enter("group", "bill");
  expect(heading.nextElementSibling).toBeNull();
});

test.each([
  ["2030-01-05T08:00:00Z", true],
  ["2030-01-05T12:00:00Z", false],
])("a schedule whose next occurrence is at %s is overdue: %s", async (next_at, isOverdue) => {
  const one = {
    cron: null,
    every_seconds: 3600,
    last_at: null,
    misfire: "once",
    name: "hourly",
    next_at,
    paused_at: null,
    timezone: "UTC",
    topic: "orders",
  };
  await page.open("?view=schedules", { schedules: { now_at: shop.NOW, schedules: [one] } });
  await page.shown(isOverdue ? /2 h ago/ : /in 2 h/);
  expect((await page.row("hourly")).queryByText("Overdue") !== null).toBe(isOverdue);
});

test("topics are searched by a part of their name", async () => {
  const { asked } = await page.open("?view=topics");
  await page.enter("name", "ord");
  await screen.findByText("Name contains: ord");
  expect(asked("topics").at(-1)).toEqual({ name_contains: "ord" });
});

test("until the first answer is there, lines stand for it", async () => {
  const { answer, give } = page.later<(typeof shop.SHOP)["topics"]>();
  await page.open("?view=topics", { topics: () => answer as never });
  expect(await screen.findByRole("status", { name: "Loading" })).toBeTruthy();
  await give(shop.SHOP.topics);
  await page.rows("Topics");
  expect(screen.queryByRole("status", { name: "Loading" })).toBeNull();
});
