import { expect, it } from "vitest";
import { Failure } from "./api";
import { type Part, actOnEach, portions, told } from "./outcomes";

it("tells each kind of outcome with its number", () => {
  expect(
    told([
      { message_id: "1", outcome: "recalled" },
      { message_id: "2", outcome: "already_released" },
      { message_id: "3", outcome: "recalled" },
    ]),
  ).toBe("2 recalled: never delivered\n1 already released: it was too late");
});

it("tells why one was refused", () => {
  expect(told([{ detail: "The limit is 24 h.", message_id: "1", outcome: "refused" }])).toBe(
    "1 refused\nThe limit is 24 h.",
  );
});

it("takes a list in portions", () => {
  expect([...portions([1, 2, 3, 4, 5], 2)]).toEqual([[1, 2], [3, 4], [5]]);
});

const recalled = (ids: string[]) =>
  Promise.resolve(ids.map((id) => ({ message_id: id, outcome: "recalled" })));
const never = () => false;
const quietly = () => undefined;
/** A request for each of these, of which the answers follow one another. */
const partsOf = (all: string[][], act: (ids: string[]) => ReturnType<typeof recalled>): Part[] =>
  all.map((ids) => ({ act: () => act(ids), ids }));

it.each([
  [
    new Failure(0, "Unreachable", "No answer."),
    "2 recalled: never delivered\n2 outcome unknown: check the list",
  ],
  [new Failure(401, "NotLoggedIn", "No answer."), "2 recalled: never delivered\n3 not tried"],
])("tells what was done before a failure", async (failure, words) => {
  let calls = 0;
  const act = (ids: string[]) => (calls++ === 0 ? recalled(ids) : Promise.reject(failure));
  const outcomes = await actOnEach(partsOf([["1", "2"], ["3", "4"], ["5"]], act), quietly, never);
  expect(told(outcomes)).toContain(words);
  expect(told(outcomes)).toContain("No answer.");
  expect(outcomes).toHaveLength(5);
  expect(calls).toBe(2);
});

it("does not say that nothing was done where the first answer did not arrive", async () => {
  const away = () => Promise.reject(new Failure(503, "BrokerUnreachable", "It is away."));
  const outcomes = await actOnEach(partsOf([["1", "2"], ["3"]], away), quietly, never);
  expect(told(outcomes)).toBe("2 outcome unknown: check the list\n1 not tried\nIt is away.");
});

it("asks no more of a broker that failed in the midst", async () => {
  const asked: string[][] = [];
  const act = (ids: string[]) => {
    asked.push(ids);
    return Promise.resolve([
      { message_id: "1", outcome: "recalled" },
      { detail: "It is away.", message_id: "2", outcome: "unknown" },
      { message_id: "3", outcome: "not_tried" },
    ]);
  };
  const outcomes = await actOnEach(partsOf([["1", "2", "3"], ["4"]], act), quietly, never);
  expect(asked).toEqual([["1", "2", "3"]]);
  expect(told(outcomes)).toBe(
    "1 recalled: never delivered\n1 outcome unknown: check the list\n2 not tried\nIt is away.",
  );
});

it("goes no further than the part in which the user stops it", async () => {
  const told_: number[] = [];
  const outcomes = await actOnEach(
    partsOf([["1"], ["2"], ["3"]], recalled),
    (done) => told_.push(done),
    () => told_.length === 2,
  );
  expect(told_).toEqual([1, 2]);
  expect(told(outcomes)).toBe("2 recalled: never delivered\n1 not tried");
});

it("throws what was refused before anything was done", async () => {
  const failure = new Failure(403, "NotAllowed", "You may not.");
  await expect(
    actOnEach(
      partsOf([["1"]], () => Promise.reject(failure)),
      quietly,
      never,
    ),
  ).rejects.toBe(failure);
});
