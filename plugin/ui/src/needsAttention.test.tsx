import { screen, within } from "@testing-library/react";
import { expect, test } from "vitest";
import type { Schemas } from "./api";
import { hindrances, open, shown } from "./testing/page";
import * as shop from "./testing/shop";

const { at } = shop;

const fault = (
  kind: Schemas["Fault"]["kind"],
  group: string,
  number: number,
  others: number,
): Schemas["Fault"] => ({ group, kind, number, others, since_at: at(-57), topic: "orders" });

/** The lines of the list, and where each leads. */
const lines = async () => {
  const list = await screen.findByRole("list", { name: "Needs attention" });
  return within(list)
    .getAllByRole("listitem")
    .map((one) => [
      one.firstChild?.textContent,
      within(one).getByRole("link").getAttribute("href")?.replace("/shop/plugin/duewheel", ""),
    ]);
};

test("problems that the verdict only counts have a sentence and a link each, one kind after another", async () => {
  const watcher = (name: string): Schemas["Watcher"] => ({
    asset: "due_orders",
    connection_id: "shop",
    dags: ["cancel"],
    group: "canceller",
    name,
    problem: "Group canceller is paused.",
    rang_at: null,
    topic: "orders",
    triggerer: null,
  });
  await open(
    "",
    {
      pulse: shop.pulse({
        faults: [
          ...[3, 2, 1, 0].map((others) => fault("dead_letters", `dead-${others}`, others + 1, others)),
          ...[9, 8].map((others) => fault("takes_nothing", `still-${others}`, 15_960, others)),
        ],
        overdue: ["a", "b"].map((topic) => ({ due_at: at(-2), topic })),
      }),
    },
    {
      others: {
        "duewheel/api/watchers": {
          more: false,
          now_at: shop.NOW,
          watchers: [watcher("one"), watcher("two")],
        },
      },
    },
  );
  await shown("Watcher two of canceller cannot ring");
  expect(await lines()).toEqual([
    ["Messages of b have been due for 2 min and are not released", "?view=messages&topic=b"],
    ["dead-2 has 3 dead letters", "?view=dead&group=dead-2&topic=orders"],
    ["still-8: 15,960 ready, none taken for 57 min", "?view=group&group=still-8&topic=orders"],
    ["Watcher two of canceller cannot ring", "?view=watchers"],
    ["dead-1 has 2 dead letters", "?view=dead&group=dead-1&topic=orders"],
  ]);
  // One dead letter's group that is not shown, and eight that are not even named.
  await shown("and 9 more");
  // Nothing is told twice.
  const verdict = screen.getByRole("region", { name: "Verdict" }).textContent;
  for (const [words] of await lines()) expect(verdict).not.toContain(words);
  expect(await hindrances()).toEqual([]);
});

test("where the verdict names all problems, or there is none, no list follows", async () => {
  await open("", { pulse: shop.pulse({ faults: [fault("dead_letters", "push", 3, 0)] }) });
  await shown("push has 3 dead letters");
  expect(screen.queryByRole("heading", { name: "Needs attention" })).toBeNull();
});
