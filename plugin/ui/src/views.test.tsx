import { cleanup, screen, waitFor, within } from "@testing-library/react";
import { expect, test, vi } from "vitest";
import {
  address,
  button,
  select,
  enter,
  field,
  follow,
  hindrances,
  later,
  lost,
  open,
  press,
  refused,
  row,
  rows,
  shown,
} from "./testing/page";
import type { Schemas } from "./api";
import * as shop from "./testing/shop";

const { NOW, at, id } = shop;

/** Each view with its heading, and for each of its tables the columns and the cells of the first row. */
test.each<[string, string, [string, string, string][]]>([
  [
    "",
    "Released: 5 · Due: 5, 1 h before and after now",
    [
      [
        "Lateness of release by topic",
        "Topic|Worst hour’s p99|That hour|By hour|p50, last hour|p99, last hour|Released by|Newest",
        "orders|13 h|2030-01-05 08:00:00|07:00 1 s, 08:00 13 h|12 ms|500 ms|wheel|1 min ago",
      ],
    ],
  ],
  [
    "?view=topics",
    "Topics",
    [
      [
        "Topics",
        "Topic|Type|Waiting|Next due|Released up to|Stragglers",
        "orders|DELAY|≈\u00a0419,066|2030-01-05 10:05:00|–|0",
      ],
    ],
  ],
  [
    "?view=messages&topic=orders",
    "Messages",
    [
      [
        "Messages",
        "Select all shown|Due|Topic|Key|Tag|State|Sent|Id",
        "|2030-01-05 10:01:00 in 1 min|orders|order-1|unpaid|waiting|2030-01-05 09:00:00|00000000000…00000001",
      ],
    ],
  ],
  [
    "?view=groups",
    "Groups",
    [
      [
        "Consumer groups",
        "Group|Topic|Ready|Oldest of these|In flight|Waiting for a retry|Dead letters|Position|Stalled|Actions",
        "ship|orders|1,999|2030-01-05 07:00:00 3 h ago|3|4|2|–||Pause⋯",
      ],
    ],
  ],
  [
    "?view=leases",
    "Open leases, next to end first",
    [
      [
        "Leases",
        "Ends|Group|Topic|Queue|Consumer|Since|Answered|Messages|Actions",
        "2030-01-05 10:30:00 in 30 min|ship|orders|4|worker-1|2030-01-05 09:30:00 30 min ago|1 of 3|first attempts|Release",
      ],
      [
        "Waiting consumers",
        "Group|Topic|Kind|Consumer|Login|Since",
        "ship|orders|task|airflow:cancel/r/t/-1|ann from 10.0.0.7|2030-01-05 09:50:00 10 min ago",
      ],
    ],
  ],
  [
    "?view=retries",
    "Messages waiting for a retry, next first",
    [
      [
        "Retries",
        "Select all shown|Next attempt|Attempt|Group|Topic|Key|Reason|Id",
        "|2030-01-05 10:01:00|2|bill|orders|order-1|HTTP 429|00000000000…00000001",
      ],
    ],
  ],
  [
    "?view=dead&group=ship",
    "Dead letters by topic, the oldest first",
    [
      [
        "Reasons",
        "Reason|Dead letters|First|Last|Actions",
        "HTTP 503|2|2030-01-05 08:30:00|2030-01-05 08:40:00|RedriveDiscard",
      ],
      [
        "Dead letters",
        "Select all shown|Dead since|Topic|Key|Attempts|Reason|Kept until|Id",
        "|2030-01-05 08:21:00|orders|r-1|1|HTTP 503|2030-01-06 10:01:00 in 1 d|00000000000…00000001",
      ],
    ],
  ],
  [
    "?view=dead",
    "Dead letters by topic, the oldest first",
    [["Groups with dead letters", "Group|Topic|Dead letters|Dropped within a day", "ship|orders|2|0"]],
  ],
  [
    "?view=schedules",
    "Schedules",
    [
      [
        "Schedules",
        "Schedule|Topic|Occurs|Next|Last|Misfire policy|Actions",
        "clean-up|orders|0 5 * * * (Europe/Berlin)|2030-01-05 11:00:00 in 1 h|–|once|Pause",
      ],
    ],
  ],
  [
    "?view=watchers",
    "Watchers of all DAGs, broken ones first",
    [
      [
        "Watchers",
        "DAG|State|Topic|Group|Last ring|Connection|Watcher, asset|Triggerer",
        "cancel|Broken Group canceller is paused.|orders|canceller|2030-01-05 09:50:00 10 min ago|shop|wheel of due_orders|machine-7",
      ],
    ],
  ],
  [
    `?view=message&id=${id(1)}`,
    "Message order-1",
    [["History", "State|At|Until|Group|Attempt|Consumer|Reason", "sent|2030-01-05 09:00:00 1 h ago|–||||"]],
  ],
])("the view %s tells its parts, and keeps nobody out", async (search, heading, tables) => {
  await open(search);
  await screen.findByRole("heading", { level: 2, name: heading });
  for (const [name, head, first] of tables) {
    expect((await rows(name)).slice(0, 2).map((cells) => cells.join("|"))).toEqual([head, first]);
  }
  expect(screen.getByRole("heading", { level: 1 }).textContent).toBe("Delay messages");
  expect(within(screen.getByRole("navigation", { name: "Views" })).getAllByRole("link")).toHaveLength(5);
  expect(await hindrances()).toEqual([]);
});

test("a group that does not receive all shows its tags and its filter", async () => {
  const groups = ["all", "both", "filtered"].map((group) => shop.group({ group }));
  const progress = [
    shop.progress({ group: "all" }),
    shop.progress({ filter: '($."amount" > 100)', group: "both", tags: "a || b" }),
    shop.progress({ filter: '($."amount" > 100)', group: "filtered" }),
  ];
  await open("?view=groups", { groups: { ...shop.groups(groups), progress } });
  await screen.findByRole("table", { name: "Consumer groups" });
  expect((await rows("Consumer groups")).slice(1).map(([first]) => first)).toEqual([
    "all",
    'both tags a || b, filter ($."amount" > 100)',
    'filtered filter ($."amount" > 100)',
  ]);
});

test("numbers stand at the right of their column, and words at the left", async () => {
  await open("?view=leases");
  const table = await screen.findByRole("table", { name: "Leases" });
  const aligned = [...table.querySelectorAll("th, td")].map((one) => [
    one.textContent.trim(),
    getComputedStyle(one).textAlign,
  ]);
  expect(aligned).toContainEqual(["Queue", "end"]);
  expect(aligned).toContainEqual(["4", "end"]);
  expect(aligned).toContainEqual(["ship", "start"]);
});

test("what the view shows first is asked for at once, the axis before the verdict", async () => {
  const { asked, calls } = await open("?topic=orders&span=3d&from=2030-01-06T00:00:00Z");
  await screen.findByRole("region", { name: "State of the broker" });
  expect(calls.slice(0, 3).map((one) => one.path)).toEqual(["duewheel/api/brokers", "overview", "pulse"]);
  expect(calls[1]?.query).toEqual({ from_at: "2030-01-06T00:00:00Z", span: "3d", topic: "orders" });
  // A tile has the next hour of all topics.
  expect(asked("overview")).toEqual([calls[1]?.query, { span: "1h" }]);
});

test("another view does not ask for the overview", async () => {
  const { asked } = await open("?view=schedules");
  await shown("clean-up");
  expect([asked("overview").length, asked("schedules").length]).toEqual([0, 1]);
});

test("what the first view could not read in time is named", async () => {
  await open("", {
    overview: shop.overview({ missing: ["flow"] }),
    pulse: shop.pulse({ faults: null, groups_at: null }),
  });
  await shown(
    "Not read in time, or not for all topics: what was acked and failed. It is read again shortly.",
  );
  await shown("The numbers of the groups could not be read in time. They are read again shortly.");
});

test.each([
  [["2030-01-05T09:59:50Z", "2030-01-05T09:59:50Z"], "2 wheels running"],
  [["2030-01-05T09:59:50Z", "2030-01-05T09:59:49Z"], "1 wheel running, 1 stopped responding"],
  [["2030-01-05T09:59:49Z"], "0 wheels running, 1 stopped responding"],
])("of wheels last active at %s the view says %s", async (active, words) => {
  const wheels = active.map((one, number) => shop.wheel(`w:${number}`, one));
  await open("", { pulse: shop.pulse({ wheels }) });
  const title = await screen.findByRole("heading", { name: /wheels? running/ });
  expect(title.textContent).toBe(words);
  const still = active.some((one) => one.endsWith("49Z"));
  if (!still) await press("Show the wheels");
  expect((await rows("Wheels")).at(-1)?.at(-1)).toBe(still ? "11 s ago stopped responding" : "10 s ago");
});

test("the overview names who holds upkeep up, and groups left out", async () => {
  const holder = {
    application: "psql",
    gid: null,
    holds: "topic",
    login: "ann",
    pid: 7,
    since_at: at(-90),
    state: "active",
  };
  await open("", {
    overview: shop.overview({
      held_up_by: [
        holder,
        { ...holder, gid: "two-phase", holds: "upkeep", pid: null, since_at: null, state: null },
      ],
    }),
    pulse: shop.pulse({ groups_to: "orders", wheels: [] }),
  });
  expect((await rows("Sessions that hold upkeep up")).slice(1)).toEqual([
    ["pid 7", "ann", "psql", "active", "2030-01-05 08:30:00 1 h 30 min ago", "the lock of a topic"],
    ["the prepared transaction two-phase", "ann", "psql", "hidden", "over an hour", "the lock of upkeep"],
  ]);
  await shown("There was no time for the topics after “orders”, by name.");
  await screen.findByRole("heading", { name: "No wheel is connected" });
});

test("a replaced message has its word in the list, and leads to what replaced it", async () => {
  const replaced = shop.message(1, { recalled: true, replaced_by: id(2) });
  await open("?view=messages&state=recalled", { messages: shop.messages([replaced]) });
  const cells = await row("replaced");
  expect(cells.getAllByRole("link").map((one) => one.getAttribute("href"))).toContain(
    `/shop/plugin/duewheel?view=message&id=${id(2)}`,
  );
});

test("a list that was cut reports that there are more", async () => {
  const topics = ["a", "b"].map((topic) => ({ due_at: at(-2), topic }));
  await open("?view=leases", {
    leases: { leases: [shop.lease()], more: true, now_at: NOW },
    pulse: shop.pulse({ overdue: topics, overdue_has_more: true }),
    "waiting-consumers": { consumers: [], more: true, now_at: NOW },
  });
  await shown("Only the 1 that end first are shown: narrow the filter for others.");
  await shown(/^Messages of a have been due for 2 min and are not released; also of at least 1 other topic$/);
});

test("a list that was cut before its first row does not say that there is none", async () => {
  await open("?view=leases", {
    leases: { leases: [], more: true, now_at: NOW },
    "waiting-consumers": { consumers: [], more: true, now_at: NOW },
  });
  await shown("None was read in time, and there may be some: set a filter.");
  expect(screen.queryByText(/^Only the/)).toBeNull();
});

test("the ten topics that were released latest stand first, and all on demand", async () => {
  const hours = (most: number) => [...Array.from({ length: 20 }, () => null), 1, most, null, 1];
  const topics = Array.from({ length: 11 }, (_, one) => ({
    p99_seconds: hours((one + 2) * 3600),
    topic: `t-${one}`,
  }));
  await open("", {
    lateness: {
      age_seconds: 0,
      from_at: at(-1380),
      hours: 24,
      looked_at_hours: 6,
      next_in_seconds: 0,
      shared_seconds: 60,
      topics,
    },
  });
  const late = await rows("Lateness of release by topic");
  expect(late.slice(1).map((one) => one[0])).toEqual(
    [10, 9, 8, 7, 6, 5, 4, 3, 2, 1].map((one) => `t-${one}`),
  );
  expect(late[1]?.slice(1, 3)).toEqual(["12 h", "2030-01-05 08:00:00"]);
  await screen.findByRole("img", { name: "By hour: 07:00 1 s, 08:00 12 h, 10:00 1 s" });
  await shown("There was time for the last 6 hours only.");
  await press("Show all 12");
  expect(await rows("Lateness of release by topic")).toHaveLength(13);
});

test.each(["from=garbage", "until=2030-01-05T10:00", "state=asleep"])(
  "messages: where %s is not understood, nothing is listed and nothing acts",
  async (wrong) => {
    const { asked, user } = await open(`?view=messages&topic=orders&${wrong}`);
    await shown("The filter is not understood, so nothing is listed. Correct it first.");
    expect(screen.queryByRole("checkbox")).toBeNull();
    expect([...asked("messages"), ...asked("messages/count")]).toEqual([]);
    if (wrong.startsWith("state")) await user.selectOptions(await field("state"), "waiting");
    else await user.click(screen.getByText("Clear"));
    await screen.findByRole("checkbox", { name: "Select all shown" });
  },
);

test("dead letters: a time that is not understood lists and acts on nothing", async () => {
  const { calls } = await open("?view=dead&group=ship&until=2030-01-05");
  await shown("The filter is not understood, so nothing is listed. Correct it first.");
  expect(screen.queryByRole("button", { name: /Redrive|Discard/ })).toBeNull();
  expect(calls.filter((one) => one.path.startsWith("dead"))).toEqual([]);
});

test.each([
  [
    "?view=typo",
    "The address names a view “typo”, which the page does not have. Select one of the views above.",
  ],
  ["?view=messages", "shop · times in UTC · duewheel 1.0"],
])("the address %s reads %s", async (search, words) => {
  await open(search);
  await shown(words);
});

test("instants are those of the chosen zone, and a link is the same for everybody", async () => {
  const { asked } = await open("?view=messages&topic=orders", {}, { zone: "Asia/Kathmandu" });
  await shown(/times in Asia\/Kathmandu/);
  // To the millisecond where the mouse is.
  const cell = await screen.findByTitle("2030-01-05 15:46:00.000 Asia/Kathmandu");
  expect(cell.textContent).toBe("2030-01-05 15:46:00 in 1 min");
  await enter("from", "2030-01-05T15:00");
  await waitFor(() => expect(address().get("from")).toBe("2030-01-05T09:15:00.000Z"));
  await waitFor(() => expect(asked("messages").at(-1)?.["due_from"]).toBe("2030-01-05T09:15:00.000Z"));
  localStorage.setItem("timezone", '"America/New_York"');
  dispatchEvent(new Event("local-storage"));
  await waitFor(async () => expect((await field("from")).value).toBe("2030-01-05T04:15"));
});

test("messages are looked for by every criterion, and by key in any state", async () => {
  const { asked } = await open("?view=messages");
  await enter("topic", "orders");
  await enter("key", "order-");
  await enter("tag", "paid");
  await waitFor(() =>
    expect(asked("messages").at(-1)).toEqual({
      key_prefix: "order-",
      state: "all",
      tag: "paid",
      topic: "orders",
    }),
  );
  expect(asked("messages/count").at(-1)).toEqual({ key_prefix: "order-", tag: "paid", topic: "orders" });
  expect(asked("messages")[0]).toEqual({ state: "waiting" });
  await shown("2 shown; of all that match, 2 wait");
  expect(document.querySelector("datalist option")?.getAttribute("value")).toBe("orders");
});

test.each([
  ["orders", { topic: "orders", view: "topic" }],
  ["ship", { group: "ship", view: "group" }],
  ["order-47", { key: "order-47", view: "messages" }],
])("the search for %s opens %o", async (typed, place) => {
  await open("?view=schedules");
  await enter("search", ` ${typed} `);
  await waitFor(() => expect(Object.fromEntries(address())).toEqual(place));
  // Who goes on by keyboard is at the top.
  await waitFor(() => expect(document.activeElement?.textContent).toBe("Delay messages"));
});

test("a search that is answered late takes no user away from another view", async () => {
  const names = later<Schemas["Names"]>();
  await open("?view=schedules", { names: () => names.answer });
  await enter("search", "orders");
  await follow("?view=groups");
  await names.give({ age_seconds: 0, groups: [], next_in_seconds: 2, shared_seconds: 2, topics: ["orders"] });
  expect(address().get("view")).toBe("groups");
});

test("a pasted id opens its message, and Ctrl K leads to the search", async () => {
  const { user } = await open("?view=messages");
  await screen.findByRole("table", { name: "Messages" });
  await user.keyboard("{Control>}k{/Control}");
  expect(document.activeElement).toBe(await field("search"));
  await user.type(await field("search"), id(1).slice(1));
  expect(address().get("view")).toBe("messages");
  await user.clear(await field("search"));
  await user.paste(` ${id(1)}\t`);
  await screen.findByRole("heading", { name: "Message order-1" });
});

test("a tab opens its first view, and names its others", async () => {
  const links = (name: string) =>
    within(screen.getByRole("navigation", { name }))
      .getAllByRole("link")
      .map((one) => `${one.textContent}${one.getAttribute("aria-current") ? "!" : ""}`);
  await open("?view=dead&group=ship");
  await screen.findByRole("navigation", { name: "Views of Groups" });
  expect(links("Views")).toEqual(["Overview", "Messages", "Topics", "Groups!", "Automation"]);
  expect(links("Views of Groups")).toEqual(["Consumer groups", "Leases", "Retries", "Dead letters!"]);
  await follow("?view=schedules");
  expect(links("Views of Automation")).toEqual(["Schedules!", "Watchers", "Waiting runs"]);
  await follow(`?view=message&id=${id(1)}`);
  expect(links("Views")).toContain("Messages!");
  expect(screen.queryByRole("navigation", { name: /Views of/ })).toBeNull();
});

test("a moved message reads moved, cannot be selected, and leads to where it is", async () => {
  const moved = shop.message(1, { moved_to: id(2), recalled: true });
  await open("?view=messages&topic=orders&state=moved", { messages: shop.messages([moved]) });
  const cells = await row("order-1");
  expect(cells.queryByRole("checkbox")).toBeNull();
  const links = cells.getAllByRole("link").map((one) => one.getAttribute("href"));
  expect(links.slice(1)).toEqual([2, 1].map((one) => `/shop/plugin/duewheel?view=message&id=${id(one)}`));
});

test("pages lead on and back by one", async () => {
  const { asked } = await open("?view=dead&group=ship", {
    "dead-letters": (query) => {
      const page = Number(query.get("after") ?? 0);
      return shop.letters([shop.letter(page)], page < 2 ? `${page + 1}` : null);
    },
  });
  const leads = async (way: string) => (await button(`${way} page`)).getAttribute("aria-disabled") !== "true";
  const turn = async (way: string, first: number) => {
    await press(`${way} page`);
    await shown(`r-${first}`);
  };
  await shown("r-0");
  expect([await leads("First"), await leads("Previous"), await leads("Next")]).toEqual([false, false, true]);
  await turn("Next", 1);
  await turn("Next", 2);
  expect(await leads("Next")).toBe(false);
  await turn("Previous", 1);
  await turn("Previous", 0);
  expect(asked("dead-letters").map((one) => one["after"])).toContain("2");
});

test("old rows stay until the new ones are there, and nothing acts on them", async () => {
  const held = later<ReturnType<typeof shop.messages>>();
  await open("?view=messages&topic=orders", {
    messages: (query) => (query.has("after") ? held.answer : shop.messages([shop.message(1)], id(1))),
    "messages/count": { exact: true, messages: 2 },
  });
  await select("Select all shown");
  await press("Select all 2");
  await press("Next page");
  expect((await button("Recall all")).hasAttribute("disabled")).toBe(true);
  expect(screen.getByText("order-1").closest("[aria-busy=true]")).toBeTruthy();
  await held.give(shop.messages([shop.message(2)]));
  await shown("order-2");
  expect(screen.queryByText("order-1")).toBeNull();
  expect((await button("Recall all")).hasAttribute("disabled")).toBe(false);
  expect(document.activeElement?.textContent).toBe("Next page");
});

test("a late answer is not shown after that to a newer question", async () => {
  const held = later<ReturnType<typeof shop.messages>>();
  await open("?view=messages&topic=orders&key=slow", {
    messages: (query) =>
      query.get("key_prefix") === "slow" ? held.answer : shop.messages([shop.message(7)]),
  });
  expect(await screen.findByRole("status", { name: "Loading" })).toBeTruthy();
  await enter("key", "order-7");
  await shown("order-7");
  await held.give(shop.messages([]));
  expect(screen.queryByText("No messages match.")).toBeNull();
  expect(screen.getByText("order-7")).toBeTruthy();
});

test.each(["messages&topic=orders", "topics", "groups", "dead&group=ship"])(
  "the list %s says when it was read, and is read anew with its count",
  async (view) => {
    const { calls } = await open(`?view=${view}`);
    const told = await shown("As of 2030-01-05 10:00:00");
    expect(told.title).toBe("2030-01-05 10:00:00.000 UTC");
    const [path = ""] = view.replace("dead", "dead-letters").split("&");
    const asked = () => calls.filter((one) => [path, `${path}/count`].includes(one.path)).length;
    await waitFor(() => expect(asked()).toBe(path === "topics" || path === "groups" ? 1 : 2));
    const before = asked();
    await press("Refresh");
    await waitFor(() => expect(asked()).toBe(2 * before));
    expect(document.activeElement?.textContent).toBe("Refresh");
  },
);

test.each([
  ["messages&topic=orders&key=a", "Filters (2 set)"],
  ["dead&group=ship", "Filters (1 set)"],
  ["leases", "Filters"],
  ["retries", "Filters"],
])("the filter of %s opens on demand where the window is narrow", async (view, name) => {
  const { user } = await open(`?view=${view}`);
  const opener = await button(name);
  const fields = document.getElementById(opener.getAttribute("aria-controls") ?? "");
  const shows = () => fields && getComputedStyle(fields).display;
  expect([opener.getAttribute("aria-expanded"), shows()]).toEqual(["false", "none"]);
  await user.click(opener);
  expect([opener.getAttribute("aria-expanded"), shows()]).toEqual(["true", "flex"]);
});

test.each(["leases", "retries"])("a mistyped name is no empty list of %s", async (view) => {
  await open(`?view=${view}&group=typo`, {
    [view]: () => refused(404, "UnknownGroup", "There is no group typo."),
  });
  expect((await screen.findByRole("alert")).textContent).toContain("There is no group typo.");
  expect(screen.queryByRole("table", { name: /Leases|Retries/ })).toBeNull();
});

test("a failure is told beside what was there before, and passes", async () => {
  let away = false;
  await open("?view=topics", {
    topics: () =>
      away
        ? refused(503, "BrokerUnreachable", "The broker's database does not answer.")
        : { next: null, now_at: NOW, topics: [] },
  });
  await shown(/^No topics yet/);
  away = true;
  await press("Refresh");
  const told = await screen.findByRole("alert");
  expect(told.textContent).toContain("The broker's database does not answer. The data below is older.");
  expect(screen.getByText(/^No topics yet/)).toBeTruthy();
  away = false;
  await press("Try again");
  await waitFor(() => expect(screen.queryByRole("alert")).toBeNull());
});

test.each([
  [() => refused(401, "Unauthorized", "no"), "Your login has expired."],
  [() => new Response("oops", { status: 500 }), "Airflow's API server answered with status 500"],
  [lost, "Airflow's API server does not answer."],
])("an answer that is none is told in words: %#", async (schedules, words) => {
  await open("?view=schedules", { schedules: () => schedules() });
  const told = await screen.findByRole("alert");
  expect(told.textContent).toContain(words);
  const link = within(told).queryByRole("link", { name: "Log in" });
  const login =
    "/shop/api/v2/auth/login?next=http%3A%2F%2Flocalhost%3A3000%2Fshop%2Fplugin%2Fduewheel%3Fview%3Dschedules";
  expect(link?.getAttribute("href") ?? null).toBe(
    words.startsWith("Your") ? `http://localhost:3000${login}` : null,
  );
});

test("an old tab says that it is old, and an answer of another shape takes nothing else with it", async () => {
  await open("?view=topics", {
    leases: () => new Response('{"leases": [], "now_at": ""}', { headers: { "Duewheel-Page": "newer" } }),
    retries: () => new Response('{"of_another": "shape"}'),
    topics: () =>
      new Response('{"topics": [], "now_at": "2030-01-05T10:00:00Z", "next": null}', {
        headers: { "Duewheel-Page": "old" },
      }),
  });
  await shown(/^No topics yet/);
  expect(screen.queryByRole("alert")).toBeNull();
  await follow("?view=leases");
  const told = await screen.findByRole("alert");
  expect(told.textContent).toContain("duewheel was upgraded since this page was loaded");
  within(told).getByRole("button", { name: "Load again" });
  vi.spyOn(console, "error").mockImplementation(() => undefined);
  await follow("?view=retries");
  await shown(/^This view cannot be shown/);
  vi.restoreAllMocks();
  await follow("?view=schedules");
  await shown("clean-up");
});

test("another broker is chosen, and one that is not listed is asked for", async () => {
  const other = { connection_id: "night", may_act: false, may_read_bodies: false };
  const { asked, user } = await open(
    "?view=topics&broker=hidden",
    {},
    {
      brokers: [other],
      others: { "duewheel/api/brokers/hidden": { ...other, connection_id: "hidden" } },
    },
  );
  await shown("Read-only: needs edit on connection hidden");
  await user.selectOptions(screen.getByLabelText("Broker"), "night");
  await shown("Read-only: needs edit on connection night");
  // The view is kept, and without a broker in the address the last one opens.
  expect(Object.fromEntries(address())).toEqual({ broker: "night", view: "topics" });
  expect(asked("topics")).toHaveLength(2);
  await follow("");
  await shown("Read-only: needs edit on connection night");
  expect(Object.fromEntries(address())).toEqual({ broker: "night" });
});

test("another broker has neither the message nor the page of the list", async () => {
  const other = { connection_id: "night", may_act: true, may_read_bodies: true };
  const { user } = await open(`?view=message&id=${id(1)}&after=x`, {}, { brokers: [other] });
  await user.selectOptions(await screen.findByLabelText("Broker"), "night");
  await waitFor(() => {
    expect(Object.fromEntries(address())).toEqual({ broker: "night", view: "messages" });
  });
});

test("without a connection the page says how to make one", async () => {
  await open("", {}, { others: { "duewheel/api/brokers": { brokers: [], version: "1.0" } } });
  await shown(/^No Airflow connection of type duewheel was found/);
});

test("who may only look is offered no action", async () => {
  for (const view of [
    "messages&topic=orders",
    "groups",
    "leases",
    "retries",
    "dead&group=ship",
    "schedules",
  ]) {
    const { calls } = await open(`?view=${view}`, {}, { rights: { may_act: false, may_read_bodies: false } });
    await shown(/^Read-only: /);
    await waitFor(() => expect(calls.length).toBeGreaterThan(2));
    await screen.findAllByRole("table");
    expect(screen.queryByRole("checkbox")).toBeNull();
    const names = screen.getAllByRole("button").map((one) => one.textContent);
    expect(names.filter((name) => /Pause|Release|Redrive|Discard|Delete|Rewind|Resume/.test(name))).toEqual(
      [],
    );
    // Dead letters are exported with their bodies.
    const files = screen.queryAllByRole("link", { name: /^Export/ });
    expect(files.some((one) => one.getAttribute("href")?.includes("dead-letters"))).toBe(false);
    document.body.innerHTML = "";
  }
});

test("a message has its facts, and no body for who may not read it", async () => {
  await open(`?view=message&id=${id(9)}`, {
    "messages/{message_id}": shop.one({
      asked_at: at(5000),
      body: null,
      moved_from: id(9),
      properties: { edited_from: id(7) },
      replaced_by: id(8),
      sent_by_task: "airflow:shop/r/send/-1",
      tag: "unpaid",
    }),
  });
  await shown("You may not read bodies: it takes the right to read the Airflow connection.");
  await shown(/this is an id that it had before/);
  const facts = [...document.querySelectorAll("dt")].map((one) => [
    one.textContent,
    one.nextSibling?.textContent,
  ]);
  const short = (number: number) => `00000000000…0000000${number}`;
  expect(facts).toEqual([
    ["Topic", "orders"],
    ["Due", "2030-01-05 10:05:00 in 5 min"],
    ["Asked for", "2030-01-08 21:20:00"],
    ["Sent", "2030-01-05 09:00:00 1 h ago"],
    ["Sent by", "airflow:shop/r/send/-1"],
    ["Tag", "unpaid"],
    ["Message group", "–"],
    ["Edited from", short(7)],
    ["Properties", `{"edited_from":"${id(7)}"}`],
    ["Id", id(1)],
    ["Sent as", short(9)],
    ["Replaced by", short(8)],
  ]);
  const task = screen.getByRole("link", { name: "airflow:shop/r/send/-1" });
  expect(task.getAttribute("href")).toBe("/shop/dags/shop/runs/r/tasks/send");
  expect((await rows("History"))[0]).toContain("Known as");
});

/** The lines of what became of a message. */
const story = async () =>
  [...(await screen.findByRole("list", { name: "What became of it" })).querySelectorAll("li")].map(
    (one) => one.textContent,
  );

test("a released message says what became of it in each group, and what can be done", async () => {
  const history = [
    shop.entry("Ready"),
    shop.entry("Inflight", "first"),
    shop.entry("DLQ", "first", { reason: "boom" }),
    shop.entry("WaitingRetry", "second", { attempt: 2, reason: "late", until_at: at(1) }),
  ];
  await open(`?view=message&id=${id(1)}`, { "messages/{message_id}": shop.one({ history, released: true }) });
  expect(await story()).toEqual([
    "first: Failed once, last: boom. A dead letter for 30 min.RedriveEdit and send",
    "second: Failed once, last: late. The next attempt is in 1 min.Retry now",
  ]);
  screen.getByRole("img", { name: "released, waiting for a retry 31 min" });
});

test("markup in a body is text, and a long body is told", async () => {
  const body = { kind: "text" as const, shown_bytes: 65_536, size_bytes: 4_194_303, text: "<b>bold</b>" };
  await open(`?view=message&id=${id(1)}`, { "messages/{message_id}": shop.one({ body }) });
  expect((await screen.findByRole("region", { name: "Body" })).innerHTML).toBe("&lt;b&gt;bold&lt;/b&gt;");
  await shown("4,194,303 bytes, as text; the first 65,536 are shown");
  const file = screen.getByRole("link", { name: "Download" }).getAttribute("href");
  expect(file).toBe(`http://localhost:3000/shop/duewheel/api/brokers/shop/messages/${id(1)}/body`);
  expect(screen.queryByRole("button", { name: "Copy" })).toBeNull();
});

test("a body is copied as it is shown, and who acted is told", async () => {
  await open(`?view=message&id=${id(1)}`, {
    "messages/{message_id}/actions": {
      actions: [{ action: "recall", at: at(-5), user: "op" }],
      may_read: true,
    },
  });
  await press("Copy");
  await button("Copied");
  expect(await navigator.clipboard.readText()).toBe('{\n  "amount": 19.90\n}');
  expect(await rows("Actions of users")).toEqual([
    ["Acted at", "User", "Action"],
    ["2030-01-05 09:55:00", "op", "recall"],
  ]);
});

test("a group's zeros lead nowhere, and its numbers to what they count", async () => {
  const none = shop.group({ group: "bill", paused_at: at(-5) });
  const { asked } = await open("?view=groups", {
    groups: (query) =>
      shop.groups(
        query.get("sort") === "lag" ? [none] : [shop.group({ dead: 2, inflight: 3, waiting_retry: 4 })],
      ),
  });
  const links = (await row("ship"))
    .getAllByRole("link")
    .map((one) => one.getAttribute("href")?.split("?")[1]);
  expect(links.slice(2)).toEqual(
    ["leases", "retries", "dead"].map((view) => `view=${view}&group=ship&topic=orders`),
  );
  await press("that lag most");
  expect((await row("paused 5 min ago")).getAllByRole("link").slice(2)).toEqual([]);
  expect((await button("that lag most")).getAttribute("aria-pressed")).toBe("true");
  expect(asked("groups").map((one) => one["sort"])).toEqual(["topic", "lag"]);
});

test("consumers that wait are tasks or programs", async () => {
  const waits = { client_address: null, group: "g", login: "ann", started_at: null, topic: "t" };
  await open("?view=leases", {
    leases: { leases: [], more: false, now_at: NOW },
    "waiting-consumers": { consumers: [{ ...waits, consumer: "stay.py" }], more: false, now_at: NOW },
  });
  await shown("No consumer has messages in hand.");
  expect((await rows("Waiting consumers"))[1]).toEqual(["g", "t", "program", "stay.py", "ann", "–"]);
});

test("dead letters are exported with the filter of the list", async () => {
  const { asked } = await open(
    "?view=dead&group=ship&topic=orders&key=r-&lacks=poison&from=2030-01-05T08:00:00Z",
  );
  const filter = {
    dead_from: "2030-01-05T08:00:00Z",
    group: "ship",
    key_prefix: "r-",
    reason_lacks: "poison",
    topic: "orders",
  };
  for (const [name, format] of [
    ["Export CSV", "csv"],
    ["Export JSON lines", "jsonl"],
  ] as const) {
    const url = new URL((await screen.findByRole("link", { name })).getAttribute("href") ?? "");
    expect(url.pathname).toBe("/shop/duewheel/api/brokers/shop/dead-letters/export");
    expect(Object.fromEntries(url.searchParams)).toEqual({ ...filter, format, redriven: "false" });
  }
  expect(asked("dead-letters")[0]).toEqual({ ...filter, redriven: "false" });
  expect(asked("dead-letters/count")[0]).toEqual(filter);
  // What is done for a reason would reach what the list leaves out.
  expect(asked("dead-letter-reasons")).toEqual([]);
});

test("reasons that were not reached are told from none", async () => {
  let complete = false;
  await open("?view=dead&group=ship", {
    "dead-letter-reasons": () => ({ complete, now_at: NOW, reasons: [] }),
  });
  await shown(/^No reasons are shown: the oldest 50 000 dead letters/);
  complete = true;
  await press("Refresh");
  await waitFor(() => expect(screen.queryByText(/^No reasons are shown/)).toBeNull());
});

test("a task instance shows what it sent and received, also where its run lasts", async () => {
  const task = "dags/shop/dagRuns/r/taskInstances/t/-1";
  const one = {
    attempt: 1,
    born_at: at(-60),
    deliver_at: at(-10),
    key: "k",
    leased_at: at(-5),
    message_id: id(1),
    tag: null,
  };
  const { asked } = await open(
    "",
    {
      "task-messages": {
        messages: [one, { ...one, key: "sent", leased_at: null, message_id: id(2) }],
        now_at: NOW,
      },
    },
    {
      others: {
        [`api/v2/${task.replace("/-1", "")}`]: {
          end_date: null,
          rendered_fields: { duewheel_conn_id: "shop", group: "g", topic: "orders" },
          run_after: at(0),
        },
      },
      place: { dagId: "shop", runId: "r", taskId: "t" },
    },
  );
  expect((await rows("Received messages"))[1]?.[1]).toBe("k");
  expect((await rows("Sent messages"))[1]?.[1]).toBe("sent");
  expect(asked("task-messages")[0]).toEqual({
    dag_id: "shop",
    group: "g",
    map_index: "-1",
    run_id: "r",
    since_at: "2030-01-05T09:00:00.000Z",
    task_id: "t",
    topic: "orders",
  });
});

test("what ended a message has its own word, with a link to what took its place", async () => {
  const deleted = (reason: string, group: string | null) => shop.entry("Deleted", group, { reason });
  const ended: [string, string, Partial<Schemas["OneMessage"]>][] = [
    [
      "Recalled 35 min before it was due. No group receives it.",
      "recalled",
      { history: [deleted("recalled", null)], recalled: true },
    ],
    [
      `Replaced 35 min before it was due: ${id(2).slice(0, 11)}…${id(2).slice(-8)}`,
      "replaced as",
      { history: [deleted(`replaced by ${id(2)}`, null)], recalled: true },
    ],
    [
      "ship: Its dead letter was discarded 30 min ago.",
      "discarded",
      { history: [shop.entry("DLQ", "ship"), deleted("discarded as a dead letter", "ship")], released: true },
    ],
    [
      `ship: Its dead letter was edited and sent 30 min ago: ${id(3).slice(0, 11)}…${id(3).slice(-8)}`,
      "edited and sent as",
      {
        edited_to: { ship: id(3) },
        history: [shop.entry("DLQ", "ship"), deleted("discarded as a dead letter", "ship")],
        released: true,
      },
    ],
    [
      "ship: Taken back by a rewind 30 min ago.",
      "taken back by a rewind",
      { history: [deleted("taken back when the group was rewound", "ship")], released: true },
    ],
    [
      "Deleted 30 min ago: its retention ended.",
      "expired",
      { history: [deleted("its retention ended", null)], recalled: true },
    ],
  ];
  for (const [headline, last, more] of ended) {
    await open(`?view=message&id=${id(1)}`, { "messages/{message_id}": shop.one(more) });
    expect(await story()).toEqual([headline]);
    expect((await rows("History")).at(-1)?.[0]).toMatch(last);
    cleanup();
  }
});

test("a key that is searched for stands before those that begin with it", async () => {
  const found = [
    shop.message(1, { key: "47110", topic: "a" }),
    shop.message(2, { key: "4711", topic: "b" }),
    shop.message(3, { key: "4711", topic: "c" }),
  ];
  await open("?view=messages&key=4711", { messages: shop.messages(found) });
  expect((await rows("Messages")).slice(1).map((one) => [one[4], one[1]])).toEqual([
    ["4711", "this key"],
    ["4711", "this key"],
    ["47110", "begins with it"],
  ]);
});

test("where all that match are counted and there are none, no further page is named", async () => {
  await open("?view=messages&topic=orders&tag=x", {
    messages: shop.messages([], id(9)),
    "messages/count": { exact: true, messages: 0 },
  });
  await shown("0 of 0");
  await shown("No messages match.");
  expect(screen.queryByRole("link", { name: /Next/ })).toBeNull();
  expect(screen.queryByRole("button", { name: /Next/ })).toBeNull();
});

const NO_WATCHERS = { "duewheel/api/watchers": { ...shop.WATCHERS, watchers: [] } };

const fault = (kind: Schemas["Fault"]["kind"], more: Partial<Schemas["Fault"]> = {}) => ({
  group: "push",
  kind,
  number: 1_887,
  others: 0,
  since_at: at(-57),
  topic: "orders",
  ...more,
});

test.each<[Schemas["Fault"], string, string]>([
  [fault("dead_letters"), "push has 1,887 dead letters", "?view=dead&group=push&topic=orders"],
  [
    fault("dead_letters", { number: 1, others: 2 }),
    "push has 1 dead letter; also 2 other groups",
    "?view=dead&group=push&topic=orders",
  ],
  [
    fault("dropped_soon"),
    "1,887 dead letters of push are dropped within a day",
    "?view=dead&group=push&topic=orders",
  ],
  [fault("takes_nothing"), "push: 1,887 ready, none taken for 57 min", "?view=group&group=push&topic=orders"],
  [
    fault("lags"),
    "push does not keep up: 1,887 ready, the oldest for 57 min",
    "?view=group&group=push&topic=orders",
  ],
  [
    fault("abandoned"),
    "push has taken nothing of orders for 57 min; 1,887 messages past retention are kept for it",
    "?view=group&group=push&topic=orders",
  ],
  [
    fault("leases_expire", { since_at: null }),
    "1,887 leases of push ran out without an answer in the last 15 minutes",
    "?view=leases&group=push&topic=orders",
  ],
  [
    fault("upkeep_held_up", { group: null, since_at: null }),
    "Upkeep has been held up for over an hour",
    "?view=overview",
  ],
  [
    fault("upkeep_overdue", { group: null }),
    "Upkeep, due every hour, was last done 57 min ago",
    "?view=overview",
  ],
])("the fault %o has a sentence, and a button", async (one, words, search) => {
  await open("?view=schedules", { pulse: shop.pulse({ faults: [one] }) }, { others: NO_WATCHERS });
  const verdict = within(await screen.findByRole("region", { name: "Verdict" }));
  expect(verdict.getByText("1 problem")).toBeTruthy();
  const row = within(verdict.getByText(words).closest("li") as HTMLElement);
  expect(row.getByRole("link").getAttribute("href")).toBe(`/shop/plugin/duewheel${search}`);
});

test.each([
  [
    () => refused(503, "BrokerUnreachable", "The broker's database does not answer."),
    "State unknown: The broker's database does not answer.",
  ],
  [
    () =>
      refused(504, "TookTooLong", "The broker did not answer within 5 s. Try again, or narrow the filter."),
    "State unknown: the broker did not answer in time",
  ],
])("a list that does not refresh has the error of the state above it: %#", async (pulse, words) => {
  await open("?view=topics", { pulse: () => pulse() });
  await shown(words);
  await follow("?view=overview");
  await screen.findByRole("region", { name: "Lateness of release by topic" });
  expect(screen.queryByRole("region", { name: "State of the broker" })).toBeNull();
});

test.each(["?view=schedules", "", "?view=overview&topic=orders"])(
  "the button beside a wheel that stopped leads to the wheels from %s",
  async (from) => {
    const wheels = [shop.wheel("vm:26298", "2030-01-05T09:59:27Z")];
    const { user } = await open(from, { pulse: shop.pulse({ wheels }) }, { others: NO_WATCHERS });
    for (let click = 0; click < 2; click += 1) {
      await user.click(await screen.findByRole("link", { name: "Show wheels" }));
      await waitFor(() => {
        expect(document.activeElement?.textContent).toBe("0 wheels running, 1 stopped responding");
      });
      (document.activeElement as HTMLElement).blur();
    }
  },
);

test("what is wrong with wheels, releases and watchers stands in the first line", async () => {
  await open("?view=schedules", {
    pulse: shop.pulse({
      late: { by_wheel: true, newest_at: NOW, p50_seconds: 1, p99_seconds: 1.1, ticks: 3, topic: "mail" },
      overdue: [
        { due_at: at(-12), topic: "orders" },
        { due_at: at(-11), topic: "mail" },
      ],
      wheels: [shop.wheel("vm:26298", "2030-01-05T09:59:27Z")],
    }),
  });
  const verdict = within(await screen.findByRole("region", { name: "Verdict" }));
  await verdict.findByText("4 problems");
  expect(verdict.getAllByRole("listitem").map((one) => one.textContent)).toEqual([
    "Wheel vm:26298 stopped responding 33 s ago: restart it, or start anotherShow wheels",
    "Messages of orders have been due for 12 min and are not released; also of 1 other topicShow messages",
    "mail was released 1.1 s late in the last 5 minutesShow the topic",
    "Watcher wheel of canceller cannot ringShow watchers",
  ]);
  expect(await hindrances()).toEqual([]);
});

test.each([
  [{}, "All on time"],
  [{ faults: null }, "Not all numbers could be read in time"],
  [{ groups_to: "orders" }, "Not all numbers could be read in time"],
])("where nothing is wrong with %o, it says %s", async (more, words) => {
  await open("?view=schedules", { pulse: shop.pulse(more) }, { others: NO_WATCHERS });
  await shown(words);
  expect(await hindrances()).toEqual([]);
});
