import { within } from "@testing-library/react";
import { expect, test } from "vitest";
import * as page from "./testing/page";
import * as shop from "./testing/shop";

const { NOW, at, id } = shop;

test("runs that wait are listed with their deadline, and are answered there", async () => {
  const { acted } = await page.open(
    "?view=waits",
    {},
    {
      acts: {
        "messages/answer": { detail: null, message_id: id(1), new_message_id: null, outcome: "answered" },
      },
    },
  );
  expect(await page.rows("Waiting runs")).toEqual([
    ["Key", "DAG", "Task instance", "Topic", "Times out", "Since", "Id", "Actions"],
    [
      "order-1",
      "approve",
      "airflow:approve/r/t/-1",
      "approvals",
      "2030-01-05 11:50:00 in 1 h 50 min",
      "2030-01-05 09:50:00 10 min ago",
      "00000000000…00000001",
      "Answer",
    ],
  ]);
  expect(await page.hindrances()).toEqual([]);
  await page.press("Answer");
  await page.enter("answer", "true");
  await page.confirm("Answer");
  await page.close();
  expect(acted("messages/answer")).toEqual([{ body: "true\n", message_id: id(1) }]);
});

test.each([
  [true, "Withdrawn: the next run that waits under order-7 waits for another answer."],
  [false, "Nothing to do: a run has taken the answer to order-7, or it was withdrawn."],
])("an early answer is listed and withdrawn: %s", async (withdrawn, words) => {
  const { acted } = await page.open("?view=waits", {}, { acts: { "early-answers/withdraw": { withdrawn } } });
  expect((await page.rows("Early answers"))[1]).toEqual([
    "order-7",
    "approvals",
    '{"approved":true}',
    "2030-01-06 10:00:00 in 1 d",
    "Withdraw",
  ]);
  await page.press("Withdraw");
  await page.confirm("Withdraw");
  expect(await page.told()).toBe(words);
  expect(acted("early-answers/withdraw")).toEqual([{ key: "order-7", topic: "approvals" }]);
});

test("who may not read bodies or act sees neither the answers nor actions, and a cut list says so", async () => {
  const answers = [{ answer: null, key: "order-7", topic: "approvals", until_at: at(1440) }];
  const none = { more: true, now_at: NOW, runs: [] };
  await page.open(
    "?view=waits",
    { "early-answers": { answers, may_read: false, more: true, now_at: NOW }, "waiting-runs": none },
    { rights: { may_act: false } },
  );
  expect((await page.rows("Early answers"))[0]).toEqual(["Key", "Topic", "Kept until"]);
  await page.shown("Only the 1 that are kept for the shortest time are shown.");
  await page.shown("No run waits for an answer.");
  expect(within(document.body).queryByRole("button", { name: "Withdraw" })).toBeNull();
});
