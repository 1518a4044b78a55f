import { screen, waitFor } from "@testing-library/react";
import { expect, test } from "vitest";
import {
  address,
  button,
  select,
  close,
  confirm,
  dialog,
  field,
  hindrances,
  later,
  lost,
  open,
  press,
  refused,
  row,
  rows,
  shown,
  told,
} from "./testing/page";
import * as shop from "./testing/shop";

const { NOW, at, id } = shop;
const MESSAGES = "?view=messages&topic=orders";
const outcomes = (...some: [number, string, string?][]) => ({
  outcomes: some.map(([number, outcome, detail = null]) => ({
    deliver_at: null,
    detail,
    message_id: id(number),
    new_message_id: null,
    outcome,
  })),
});
const tells = (words: string | RegExp) => waitFor(async () => expect(await told()).toMatch(words));
const isDisabled = async (name: string) =>
  (await dialog()).getByRole("button", { name }).hasAttribute("disabled");

/** Select the page, and where it is asked for all that match. */
async function selectAll(total?: string) {
  await select("Select all shown");
  if (total !== undefined) await press(`Select all ${total}`);
}

test("selected messages are recalled by keys alone, and the list is read again", async () => {
  let left = [shop.message(1), shop.message(2)];
  const { acted, user } = await open(
    MESSAGES,
    { messages: () => shop.messages(left) },
    {
      acts: {
        "messages/recall": () => {
          left = [];
          return outcomes([1, "recalled"], [2, "not_found"]);
        },
      },
    },
  );
  expect(screen.queryByRole("group", { name: "Selected" })).toBeNull();
  await selectAll();
  await shown("2 selected:");
  // There are no others.
  expect(screen.queryByRole("button", { name: /^Select all/ })).toBeNull();
  expect(await hindrances()).toEqual([]);
  (await button("Recall")).focus();
  await user.keyboard("{Enter}");
  expect(await hindrances("[role=alertdialog]")).toEqual([]);
  await user.keyboard("{Escape}");
  await waitFor(() => expect(document.activeElement?.textContent).toBe("Recall"));
  expect(acted("messages/recall")).toEqual([]);
  await user.keyboard("{Enter}");
  await confirm("Recall");
  await tells("1 recalled: never delivered\n1 not found: recalled before, or no longer kept");
  expect(acted("messages/recall")).toEqual([{ message_ids: [id(1), id(2)] }]);
  await waitFor(() => expect(document.activeElement?.textContent).toBe("Close"));
  await user.keyboard("{Enter}");
  await shown("No messages match.");
  // The button is no longer there, so the focus is on the list.
  await waitFor(() => expect(document.activeElement?.textContent).toBe("Messages"));
  expect(screen.queryByRole("group", { name: "Selected" })).toBeNull();
});

test("a list cannot be acted on while an act makes it be read anew", async () => {
  const held = later<ReturnType<typeof shop.groups>>();
  let acted = false;
  await open(
    "?view=groups",
    { groups: () => (acted ? held.answer : shop.groups([shop.group()])) },
    { acts: { "groups/pause": () => ((acted = true), { done: true }) } },
  );
  await press("Pause");
  await confirm("Pause");
  await tells("ship is paused.");
  await close();
  expect(document.querySelectorAll("[aria-busy=true]")).toHaveLength(1);
  expect((await button("Pause")).hasAttribute("disabled")).toBe(true);
  await held.give(shop.groups([shop.group({ paused_at: NOW })]));
  expect((await button("Resume")).hasAttribute("disabled")).toBe(false);
});

test("the numbers that the answer to an act carries are shown before they are asked for again", async () => {
  const numbers = (ready: number, seconds: number) =>
    shop.pulse({
      faults: [
        { group: "ship", kind: "dead_letters", number: ready, others: 0, since_at: null, topic: "orders" },
      ],
      now_at: new Date(Date.parse(NOW) + 1000 * seconds).toISOString(),
    });
  const { asked } = await open(
    "?view=groups",
    { pulse: numbers(800, 0) },
    { acts: { "groups/pause": { done: true, pulse: numbers(500, 1) } } },
  );
  await shown("ship has 800 dead letters");
  const before = asked("pulse").length;
  await press("Pause");
  await confirm("Pause");
  await shown("ship has 500 dead letters");
  expect(asked("pulse")).toHaveLength(before);
});

test("where no answer arrives it is not said that nothing was done", async () => {
  const { user } = await open(MESSAGES, {}, { acts: { "groups/pause": lost, "messages/recall": lost } });
  await selectAll();
  await press("Recall");
  await confirm("Recall");
  await tells("2 outcome unknown: check the list\nAirflow's API server does not answer.");
  await close();
  await user.click(screen.getByRole("link", { name: "Groups" }));
  await press("Pause");
  await confirm("Pause");
  await tells("Whether it was done is not known.");
});

test.each([
  ["Deliver now", { delay_seconds: 0 }],
  ["Reschedule", { delay_seconds: 3_600 }],
])("%s moves the selected messages", async (action, to) => {
  const { acted } = await open(
    MESSAGES,
    {},
    {
      acts: { "messages/reschedule": outcomes([1, "rescheduled"], [2, "refused", "The limit is 24 h."]) },
    },
  );
  await selectAll();
  await press(action);
  await confirm(action);
  await tells("1 rescheduled\n1 refused\nThe limit is 24 h.");
  expect(acted("messages/reschedule")).toEqual([{ message_ids: [id(1), id(2)], ...to }]);
});

test("a move does what its fields show, and forgets them when it is closed", async () => {
  const { acted, user } = await open(
    MESSAGES,
    {},
    {
      acts: { "messages/reschedule": outcomes([1, "rescheduled"], [2, "rescheduled"]) },
      zone: "Europe/Berlin",
    },
  );
  const move = async () => {
    await confirm("Reschedule");
    await tells("2 rescheduled");
    await close();
    const { message_ids, ...to } = acted("messages/reschedule").at(-1) as Record<string, unknown>;
    expect(message_ids).toHaveLength(2);
    await selectAll();
    await press("Reschedule");
    return to;
  };
  const type = async (value: string) => {
    await user.clear(await field("deliver_at"));
    if (value) await user.type(await field("deliver_at"), value);
  };
  await selectAll();
  await press("Reschedule");
  await user.selectOptions(await field("delay"), "21600");
  (await dialog()).getByRole("button", { name: "Cancel" }).click();
  await waitFor(() => expect(screen.queryByRole("alertdialog")).toBeNull());
  await press("Reschedule");
  expect((await field("delay")).value).toBe("3600");
  await user.selectOptions(await field("delay"), "21600");
  await type("2020-01-01T00:00");
  await shown("This instant is past: they are delivered at once.");
  await type("2090-11-29T00:00");
  expect(screen.queryByText(/^This instant is past/)).toBeNull();
  expect((await field("delay")).disabled).toBe(true);
  // An instant that is cleared leaves the delay that is shown.
  await type("");
  expect((await field("delay")).value).toBe("21600");
  expect(await move()).toEqual({ delay_seconds: 21_600 });
  await type("2090-11-29T00:00");
  expect(await move()).toEqual({ deliver_at: "2090-11-28T23:00:00.000Z" });
});

test("whether an instant is past is a matter of the database's clock", async () => {
  const { user } = await open(MESSAGES);
  await selectAll();
  await press("Reschedule");
  // This machine's clock is years behind that of the database.
  await user.type(await field("deliver_at"), "2030-01-05T09:00");
  await shown("This instant is past: they are delivered at once.");
  await user.clear(await field("deliver_at"));
  await user.type(await field("deliver_at"), "2030-01-05T10:30");
  expect(screen.queryByText(/^This instant is past/)).toBeNull();
});

test("what an act would affect is asked for again after a failure", async () => {
  let away = true;
  const { acted, user } = await open(
    MESSAGES,
    { "messages/count": { exact: true, messages: 30 } },
    {
      acts: {
        "messages/recall-matching": () =>
          away
            ? refused(503, "BrokerUnreachable", "It is away.")
            : { already_released: 0, due_from: NOW, matched: 30, next: null, recalled: 0 },
      },
    },
  );
  await selectAll("30");
  await press("Recall all");
  await tells("It is away.");
  expect(await isDisabled("Recall all")).toBe(true);
  expect(await hindrances("[role=alertdialog]")).toEqual([]);
  away = false;
  await user.click((await dialog()).getByRole("button", { name: "Try again" }));
  await tells("30 messages wait and match now.");
  expect(await isDisabled("Recall all")).toBe(false);
  // The button has gone, and the dialog has kept the focus.
  expect(document.activeElement?.textContent).toBe("Cancel");
  expect((await dialog()).queryByRole("button", { name: "Try again" })).toBeNull();
  expect(acted("messages/recall-matching")).toHaveLength(2);
});

const SPAN = "from=2030-01-05T10:00:00Z&until=2030-01-05T11:00:00Z";
const CRITERIA = {
  due_from: "2030-01-05T10:00:00Z",
  due_until: "2030-01-05T11:00:00Z",
  key_prefix: "c-",
  tag: "paid",
  topic: "orders",
};

test("before all are recalled or moved, each criterion is named, and nothing is done", async () => {
  const { acted, user } = await open(
    `${MESSAGES}&key=c-&tag=paid&${SPAN}`,
    { "messages/count": { exact: false, messages: 210 } },
    {
      acts: {
        "messages/recall-matching": {
          already_released: 1,
          due_from: NOW,
          matched: 211,
          next: null,
          recalled: 0,
        },
        "messages/reschedule-matching": { deliver_at: NOW, matched: 1, moved: 0, next: null },
      },
    },
  );
  await selectAll("at least 210");
  for (const [action, words] of [
    ["Recall all", "210 messages wait and match now."],
    ["Reschedule all", "1 message waits and matches now."],
    ["Deliver all now", "1 message waits and matches now."],
  ] as const) {
    await press(action);
    await tells(words);
    expect((await dialog()).getAllByRole("listitem").map((one) => one.textContent)).toEqual([
      "on topic orders",
      "with a key that begins with c-",
      "with the tag paid",
      "due from 2030-01-05 10:00:00.000 in UTC on",
      "due before 2030-01-05 11:00:00.000 in UTC",
    ]);
    await user.keyboard("{Escape}");
    await waitFor(() => expect(screen.queryByRole("alertdialog")).toBeNull());
  }
  expect(acted("messages/recall-matching")).toEqual([{ ...CRITERIA, dry_run: true }]);
  expect(acted("messages/reschedule-matching")).toEqual(
    [3_600, 0].map((delay_seconds) => ({ ...CRITERIA, delay_seconds, dry_run: true })),
  );
});

test.each([
  [1_000, false],
  [1_001, true],
])("whoever recalls %s types how many: %s", async (number, types) => {
  const { acted, user } = await open(
    MESSAGES,
    { "messages/count": { exact: true, messages: number } },
    {
      acts: {
        "messages/recall-matching": ({ dry_run }) => ({
          already_released: 0,
          due_from: NOW,
          matched: number,
          next: null,
          recalled: dry_run ? 0 : number,
        }),
      },
    },
  );
  await selectAll(number.toLocaleString("en"));
  await press("Recall all");
  await tells(`${number.toLocaleString("en")} messages wait and match now.`);
  if (types) {
    expect(await isDisabled("Recall all")).toBe(true);
    await user.type(await field("number"), "100");
    expect(await isDisabled("Recall all")).toBe(true);
    await user.type(await field("number"), "1");
  } else expect(document.querySelector("[name=number]")).toBeNull();
  await confirm("Recall all");
  await tells(`${number.toLocaleString("en")} recalled: never delivered`);
  expect(acted("messages/recall-matching").at(-1)).toEqual({ dry_run: false, topic: "orders" });
});

test("all are recalled in portions from one instant on, until one fails", async () => {
  const { acted } = await open(
    MESSAGES,
    { "messages/count": { exact: true, messages: 30 } },
    {
      acts: {
        "messages/recall-matching": ({ after, dry_run }) => {
          if (dry_run) return { already_released: 0, due_from: NOW, matched: 30, next: null, recalled: 0 };
          if (after === "2") return refused(503, "BrokerUnreachable", "It is away.");
          const next = after === "1" ? "2" : "1";
          return { already_released: 1, due_from: NOW, matched: 10, next, recalled: 9 };
        },
      },
    },
  );
  await selectAll("30");
  await press("Recall all");
  await confirm("Recall all");
  await tells(
    "18 recalled: never delivered\n2 already released: it was too late\nIt is away. The rest may still wait: recall again.",
  );
  expect(acted("messages/recall-matching").slice(1)).toEqual([
    { dry_run: false, topic: "orders" },
    ...["1", "2"].map((after) => ({ after, dry_run: false, due_from: NOW, topic: "orders" })),
  ]);
});

test("a move that was broken off or stopped goes on with the rest, to the same instant", async () => {
  const held = later<Response>();
  let moves = 0;
  const portion = (next: string | null) => ({ deliver_at: at(60), matched: 10, moved: 9, next });
  const { acted } = await open(
    MESSAGES,
    { "messages/count": { exact: true, messages: 30 } },
    {
      acts: {
        "messages/reschedule-matching": ({ dry_run }) => {
          if (dry_run) return { ...portion(null), moved: 0 };
          moves += 1;
          if (moves === 2) return lost();
          return moves === 3 ? held.answer : portion(moves === 1 ? "1" : null);
        },
      },
    },
  );
  await selectAll("30");
  await press("Reschedule all");
  await confirm("Reschedule all");
  await tells(
    /^9 rescheduled\n1 not: released.*\nAirflow's API server does not answer.*“Reschedule all” continues with the rest\.$/s,
  );
  await close();
  await press("Reschedule all");
  await tells("10 messages are left.");
  await shown(/It was interrupted. It continues with the rest, to 2030-01-05 11:00:00.000 in UTC\./);
  await confirm("Reschedule all");
  expect(await isDisabled("Cancel")).toBe(true);
  await held.give(new Response(JSON.stringify(portion("2"))));
  await tells(/^18 rescheduled\n2 not: released/);
  expect(acted("messages/reschedule-matching").slice(1)).toEqual([
    { delay_seconds: 3_600, dry_run: false, topic: "orders" },
    ...[false, true, false].map((dry_run) => ({ after: "1", deliver_at: at(60), dry_run, topic: "orders" })),
    { after: "2", deliver_at: at(60), dry_run: false, topic: "orders" },
  ]);
});

test("a move is stopped between its portions, and closing the tab is asked about", async () => {
  const held = later<Response>();
  let moves = 0;
  const portion = { deliver_at: at(60), matched: 10, moved: 10, next: "1" };
  await open(
    MESSAGES,
    { "messages/count": { exact: true, messages: 30 } },
    {
      acts: {
        "messages/reschedule-matching": ({ dry_run }) => {
          if (dry_run) return { ...portion, next: null };
          return (moves += 1) === 1 ? portion : held.answer;
        },
      },
    },
  );
  const leaves = () => dispatchEvent(new Event("beforeunload", { cancelable: true }));
  await selectAll("30");
  await press("Reschedule all");
  expect(leaves()).toBe(true);
  await confirm("Reschedule all");
  await tells("10 rescheduled …");
  expect(leaves()).toBe(false);
  expect(await isDisabled("Close")).toBe(true);
  (await dialog()).getByRole("button", { name: "Stop" }).click();
  await held.give(new Response(JSON.stringify(portion)));
  await tells("20 rescheduled\nStopped: the rest are unchanged. “Reschedule all” continues with them.");
  expect([moves, leaves()]).toEqual([2, true]);
});

test("all of one reason are redriven in portions, and what dies after the question is left alone", async () => {
  let now_at = NOW;
  const { acted, user } = await open(
    "?view=dead&group=ship&topic=orders&from=2030-01-05T08:00:00Z",
    { "dead-letter-reasons": () => ({ ...shop.reason("HTTP 503", 1_200), now_at }) },
    {
      acts: {
        "dead-letters/redrive": ({ after, dry_run }) => {
          now_at = at(5);
          return dry_run
            ? { done: 0, matched: 1_200, next: null }
            : { done: after ? 199 : 500, matched: 500, next: after ? null : "p" };
        },
      },
    },
  );
  await (await row("HTTP 503")).findByRole("button", { name: "Redrive" }).then((one) => user.click(one));
  await tells("1,200 dead letters have it.");
  await shown(
    "All dead letters of ship on topic orders with this reason, dead from 2030-01-05 08:00:00.000 in UTC, are sent again, each once:",
  );
  await user.type(await field("number"), "1,200");
  await confirm("Redrive");
  await tells("699 sent again.");
  const which = {
    dead_from: "2030-01-05T08:00:00Z",
    dead_until: NOW,
    group: "ship",
    reason: "HTTP 503",
    topic: "orders",
  };
  expect(acted("dead-letters/redrive")).toEqual([
    { ...which, dry_run: true },
    { ...which, after: null, dry_run: false, max_messages: 500 },
    { ...which, after: "p", dry_run: false, max_messages: 500 },
  ]);
});

test("of all that match, a redrive takes those of the reason in its dialog, at its rate", async () => {
  const { acted, user } = await open(
    "?view=dead&group=ship&topic=orders&key=c-&lacks=poison&from=2030-01-05T08:00:00Z&until=2030-01-05T09:00:00Z",
    { "dead-letters/count": { exact: true, messages: 250, now_at: NOW } },
    {
      acts: {
        "dead-letters/redrive": ({ dry_run, reason_contains }) =>
          dry_run
            ? { done: 0, matched: reason_contains ? 1 : 250, next: null }
            : { done: 1, matched: 1, next: null },
      },
    },
  );
  await selectAll("250");
  await press("Redrive all");
  await tells("250 dead letters that match to be sent again.");
  await shown(
    /^All dead letters of ship, on topic orders, whose key begins with c-, whose reason does not contain poison, dead from 2030-01-05 08:00:00.000 in UTC on, dead before 2030-01-05 09:00:00.000 in UTC, are sent again, each once\./,
  );
  await user.type(await field("reason"), "429");
  await tells("1 dead letter that match to be sent again.");
  await user.type(await field("rate"), "0");
  await confirm("Redrive all");
  await tells("The rate has to be more than 0.");
  await close();
  await press("Redrive all");
  await user.clear(await field("rate"));
  await user.type(await field("rate"), "50");
  await confirm("Redrive all");
  await tells("1 sent again.");
  expect(acted("dead-letters/redrive").at(-1)).toEqual({
    after: null,
    dead_from: "2030-01-05T08:00:00Z",
    dead_until: "2030-01-05T09:00:00Z",
    dry_run: false,
    group: "ship",
    key_prefix: "c-",
    max_messages: 50,
    reason_contains: "429",
    reason_lacks: "poison",
    topic: "orders",
  });
});

test.each([
  [["discard"], "300 of 800 were discarded by another user at 02:14."],
  [
    ["redrive", "recall_matching", "discard"],
    "300 of 800 were sent again or discarded by another user at 02:14.",
  ],
  [[], "300 of 800 were sent again, discarded or dropped by retention meanwhile."],
])("why fewer are discarded than were counted, after %o of others", async (actions, why) => {
  const { asked } = await open(
    "?view=dead&group=ship&topic=orders",
    {
      "dead-letters/count": { exact: true, messages: 800, now_at: NOW },
      "recent-actions": { actions: actions.map((action) => ({ action, at: "2030-01-05T02:14:09Z" })) },
    },
    {
      acts: {
        "dead-letters/redrive": ({ dry_run }) => ({ done: dry_run ? 0 : 500, matched: 800, next: null }),
      },
    },
  );
  await selectAll("800");
  await press("Redrive all");
  await tells("800 dead letters that match to be sent again.");
  expect(asked("recent-actions")).toEqual([]);
  await confirm("Redrive all");
  await tells(`500 sent again.\n${why}`);
  expect(asked("recent-actions")).toEqual([
    { group: "ship", topic: "orders", within_seconds: expect.stringMatching(/^[1-9]$/) as string },
  ]);
});

test("why fewer are recalled than were counted", async () => {
  await open(
    MESSAGES,
    {
      "messages/count": { exact: true, messages: 800 },
      "recent-actions": { actions: [{ action: "recall_matching", at: "2030-01-05T02:14:09Z" }] },
    },
    {
      acts: {
        "messages/recall-matching": ({ dry_run }) =>
          dry_run
            ? { already_released: 0, due_from: null, matched: 800, next: null, recalled: 0 }
            : { already_released: 0, due_from: null, matched: 500, next: null, recalled: 500 },
      },
    },
  );
  await selectAll("800");
  await press("Recall all");
  await tells("800 messages wait and match now.");
  await confirm("Recall all");
  await tells("300 of 800 no longer waited: recalled by another user at 02:14, or released.");
});

test.each([
  ["Redrive", "redrive", "sent again"],
  ["Discard", "discard", "discarded"],
] as const)("selected dead letters: %s tells what others were faster with", async (action, path, done) => {
  const { acted } = await open(
    "?view=dead&group=ship",
    {},
    {
      acts: { [`dead-letters/${path}`]: { done: 1, matched: 2, next: null } },
    },
  );
  await selectAll();
  const bar = await screen.findByRole("group", { name: "Selected" });
  [...bar.querySelectorAll("button")].find((one) => one.textContent === action)?.click();
  await confirm(action);
  await tells(`1 ${done}.\n1 not: sent again or discarded by others just now, or no longer kept`);
  expect(acted(`dead-letters/${path}`)).toEqual([
    {
      dead_from: "2030-01-05T08:21:00.000Z",
      dead_until: "2030-01-05T08:22:00.001Z",
      dry_run: false,
      group: "ship",
      message_ids: [id(1), id(2)],
    },
  ]);
});

test("a run that waits is answered from its message", async () => {
  const answers: Record<string, unknown>[] = [];
  const told = (outcome: string, new_message_id: string | null = null) => ({
    deliver_at: null,
    detail: null,
    message_id: id(1),
    new_message_id,
    outcome,
  });
  let outcome = told("answered");
  const { user } = await open(
    `?view=message&id=${id(1)}`,
    { "messages/{message_id}": shop.one({ awaits_answer: true, key: "order-1" }) },
    {
      acts: {
        "messages/answer": (asked) => {
          answers.push(asked);
          return outcome;
        },
      },
    },
  );
  await shown("an answer to the key order-1, or its timeout");
  const answer = async (text: string, words: string) => {
    await press("Answer");
    await user.clear(await field("answer"));
    await user.click(await field("answer"));
    await user.paste(text);
    await confirm("Answer");
    await tells(words);
    await close();
  };
  await answer("yes", "The answer is not JSON: a text needs quotation marks. Nothing was answered.");
  expect(answers).toEqual([]);
  await answer('{"n": 12345678901234567890}', "Answered: the run continues with this answer.");
  expect(answers).toEqual([{ body: '{"n": 12345678901234567890}', message_id: id(1) }]);
  for (const [word, words] of [
    ["too_late", "Too late: the run has timed out."],
    ["already_answered", "Already answered: an earlier answer counts."],
    ["recalled", "Recalled: the wait was recalled before, without an answer."],
    ["not_found", "Not found: no run waits under this key any more."],
  ] as const) {
    outcome = told(word);
    await answer("1", words);
  }
  outcome = told("answered", id(2));
  await answer(
    "1",
    `Answered: the run continues with this answer.\nAnother wait has replaced this one: message ${id(2)}.`,
  );
});

test.each([
  [false, true],
  [true, false],
])(
  "without a waiting run, or the right to act, nothing is answered: %s, %s",
  async (awaits_answer, may_act) => {
    await open(
      `?view=message&id=${id(1)}`,
      { "messages/{message_id}": shop.one({ awaits_answer }) },
      { rights: { may_act } },
    );
    await shown("Message order-1");
    expect(screen.queryByRole("button", { name: "Answer" })).toBeNull();
  },
);

test("a dead letter is edited and sent once, or redriven from its page", async () => {
  const dead = shop.one({ history: [shop.entry("DLQ", "ship")], properties: { shop: "s" }, released: true });
  let isNew = true;
  const { acted, user } = await open(
    `?view=message&id=${id(1)}`,
    { "messages/{message_id}": dead },
    {
      acts: {
        "dead-letters/redrive": { done: 1, matched: 1, next: null },
        "dead-letters/resend": () => ({ is_new: isNew, message_id: id(9) }),
      },
    },
  );
  const edit = async (name: string, text: string) => {
    await user.clear(await field(name));
    await user.click(await field(name));
    await user.paste(text);
  };
  await press("Edit and send");
  await dialog();
  expect((await field("body")).value).toContain("19.90");
  await edit("body", "no json");
  await shown("Not valid JSON. Send anyway?");
  await edit("properties", "[]");
  await confirm("Edit and send");
  await tells("The properties are no JSON object. Nothing was sent.");
  await close();
  await press("Edit and send");
  await edit("properties", '{"a": 1}');
  await confirm("Edit and send");
  await tells(`Sent as a new message, ${id(9)}. The dead letter is discarded.`);
  await close();
  expect(acted("dead-letters/resend")).toEqual([
    { body: "no json", group: "ship", message_id: id(1), properties: { a: 1 } },
  ]);
  isNew = false;
  await press("Edit and send");
  await confirm("Edit and send");
  await tells(`Another user has just sent it, as ${id(9)}.`);
  await close();
  await press("Redrive");
  await confirm("Redrive");
  await tells("Sent again. It comes to the group at once.");
  expect(acted("dead-letters/redrive")).toEqual([{ dry_run: false, group: "ship", message_ids: [id(1)] }]);
});

test("a message is acted on by the id that it has now, whichever led to it", async () => {
  const { acted } = await open(
    `?view=message&id=${id(7)}`,
    {},
    {
      acts: { "messages/recall": outcomes([1, "recalled"]) },
    },
  );
  await press("Recall");
  await confirm("Recall");
  await tells("1 recalled: never delivered");
  expect(acted("messages/recall")).toEqual([{ message_ids: [id(1)] }]);
  await close();
  expect(address().get("id")).toBe(id(7));
});

test("a message is released from its own lease, and retried now, on its page", async () => {
  const history = [
    shop.entry("Inflight", "ship", { at: at(-30), consumer: "worker-1" }),
    shop.entry("WaitingRetry", "bill"),
  ];
  const { acted } = await open(
    `?view=message&id=${id(1)}`,
    {
      leases: {
        leases: [
          shop.lease({ consumer: "worker-2", lease_id: "other" }),
          shop.lease({ leased_at: at(-31), lease_id: "older" }),
          shop.lease(),
        ],
        more: false,
        now_at: NOW,
      },
      "messages/{message_id}": shop.one({ history, released: true }),
    },
    { acts: { "leases/release": { messages: 1 }, "retries/now": outcomes([1, "due_now"]) } },
  );
  await press("Release");
  await confirm("Release");
  await tells("The lease is released: 1 message sent on.");
  await close();
  await press("Retry now");
  await confirm("Retry now");
  await tells("1 due now");
  expect(acted("leases/release")).toEqual([{ group: "ship", lease_id: "1.1.0.7.1", topic: "orders" }]);
  expect(acted("retries/now")).toEqual([{ group: "bill", message_ids: [id(1)] }]);
});

test("retries of several groups are made due, each for its own", async () => {
  const retries = [shop.retry(1), shop.retry(1, { group: "mail" }), shop.retry(2)];
  const { acted } = await open(
    "?view=retries",
    { retries: { retries } },
    {
      acts: {
        "retries/now": ({ message_ids }) =>
          outcomes(...message_ids.map((_, n): [number, string] => [n, n ? "not_waiting" : "due_now"])),
      },
    },
  );
  await selectAll();
  await press("Retry now");
  await confirm("Retry now");
  await tells("2 due now\n1 not waiting for a retry any more");
  expect(acted("retries/now")).toEqual([
    { group: "bill", message_ids: [id(1), id(2)] },
    { group: "mail", message_ids: [id(1)] },
  ]);
});

test("a lease that was over already is told", async () => {
  await open("?view=leases", {}, { acts: { "leases/release": { messages: null } } });
  await press("Release");
  await confirm("Release");
  await tells("Nothing to do: the lease was over already.");
});

test("a group is rewound once it is said since when, and how much that is", async () => {
  const { acted, asked, user } = await open(
    "?view=groups",
    {
      "groups/rewind/count": (query) => ({
        exact: true,
        messages: query.get("to") === "earliest" ? 1_962 : 1,
      }),
    },
    {
      acts: { "groups/rewind": { leases_ended: 1, messages_returned: 2, retries_recalled: 1 } },
      zone: "Europe/Berlin",
    },
  );
  const since = async (name: string) => user.selectOptions(await field("since"), name);
  await press(/^More actions/);
  await press("Rewind");
  await tells("Select since when, or everything that is kept. Nothing is changed until then.");
  expect(await isDisabled("Rewind")).toBe(true);
  await since("at");
  await user.type(await field("to"), "2030-01-05T09:00");
  await tells("1 message is delivered again that the group has read.");
  await confirm("Rewind");
  await tells(
    /^Rewound: 1 message to be delivered again\. Ended: 1 lease; .*: 2 messages; taken back: 1 retry\.$/,
  );
  await close();
  await press("Rewind");
  // What is half an instant has no value.
  await user.clear(await field("to"));
  await tells("Select since when, or everything that is kept. Nothing is changed until then.");
  expect(await isDisabled("Rewind")).toBe(true);
  await since("hour");
  await tells("1 message is delivered again that the group has read.");
  await since("all");
  await tells("1,962 messages are delivered again that the group has read.");
  expect(await isDisabled("Rewind")).toBe(true);
  await user.type(await field("number"), "1962");
  await confirm("Rewind");
  await tells("Rewound: 1,962 messages to be delivered again.");
  await close();
  expect(acted("groups/rewind")).toEqual(
    ["2030-01-05T08:00:00.000Z", "earliest"].map((to) => ({ group: "ship", to, topic: "orders" })),
  );
  expect(asked("groups/rewind/count").map(({ to }) => to)).toEqual([
    "2030-01-05T08:00:00.000Z",
    "2030-01-05T09:00:00.000Z",
    "earliest",
  ]);
});

test("the deletion of a group names all that the group loses", async () => {
  const { acted, user } = await open("?view=groups", {}, { acts: { "groups/delete": { done: true } } });
  await press(/^More actions/);
  await press("Delete");
  await tells(
    "It does not get 1,999 ready messages any more. In flight: 3; their answers are refused. 2 dead letters and 4 retries go with it.",
  );
  expect(await isDisabled("Delete")).toBe(true);
  await user.type(await field("number"), "2008");
  await confirm("Delete");
  await tells("ship is deleted on orders.");
  expect(acted("groups/delete")).toEqual([{ group: "ship", topic: "orders" }]);
});

test("a schedule is paused and resumed", async () => {
  const [one] = (shop.SHOP.schedules as { schedules: object[] }).schedules;
  let paused_at: string | null = null;
  const { acted } = await open(
    "?view=schedules",
    { schedules: () => ({ now_at: NOW, schedules: [{ ...one, paused_at }] as never }) },
    {
      acts: {
        "schedules/pause": () => ((paused_at = NOW), { done: true }),
        "schedules/resume": { done: true },
      },
    },
  );
  await press("Pause");
  await confirm("Pause");
  await tells("clean-up is paused.");
  await close();
  await waitFor(async () =>
    expect((await rows("Schedules"))[1]?.[3]).toBe("paused since 2030-01-05 10:00:00"),
  );
  await press("Resume");
  await confirm("Resume");
  await tells("clean-up is resumed.");
  expect([...acted("schedules/pause"), ...acted("schedules/resume")]).toEqual([
    { name: "clean-up" },
    { name: "clean-up" },
  ]);
});
