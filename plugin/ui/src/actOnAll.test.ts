import { expect, it } from "vitest";
import { actOnAll } from "./actOnAll";
import { Failure } from "./api";

const WORDS = {
  action: "Redrive all",
  whyFewer: (done: number) => Promise.resolve(done < 1 ? ["None was left."] : []),
  words: "sent again",
};

/** Dead letters of which portions are sent again, and what was asked of them. */
function letters(number: number) {
  const asked: number[] = [];
  let left = number;
  return {
    ask: ({ max_messages }: { max_messages: number }) => {
      asked.push(max_messages);
      const done = Math.min(left, max_messages);
      left -= done;
      return Promise.resolve({ done, next: left > 0 ? String(left) : null });
    },
    asked,
  };
}

/** What a dialog gives to an action: how long it waited and what it was told are kept. */
function course(stopsAfter = Infinity) {
  const paused: number[] = [];
  const told: string[] = [];
  return {
    isStopped: () => told.length >= stopsAfter,
    pause: (seconds: number) => {
      paused.push(seconds);
      return Promise.resolve();
    },
    paused,
    tell: (words: string) => {
      told.push(words);
    },
    told,
  };
}

it("goes on to the end, and tells how far it has come", async () => {
  const [some, going] = [letters(1_200), course()];
  expect(await actOnAll(some.ask, Infinity, WORDS, going)).toBe("1,200 sent again.");
  expect(some.asked).toEqual([500, 500, 500]);
  expect(going.told).toEqual(["500 sent again …", "1,000 sent again …"]);
  expect(going.paused).toEqual([]);
});

it.each([
  [50, 50, 1],
  [0.5, 1, 2],
  [2_000, 500, 0.25],
])("asks for %s a second by portions of %s, each after %s s", async (rate, portion, seconds) => {
  const [some, going] = [letters(2 * portion), course()];
  expect(await actOnAll(some.ask, rate, WORDS, going)).toContain("sent again.");
  expect(some.asked).toEqual([portion, portion]);
  expect(going.paused).toEqual([seconds]);
});

it("says that the others are unchanged once it is stopped", async () => {
  const some = letters(1_200);
  expect(await actOnAll(some.ask, 1_000, WORDS, course(1))).toBe(
    "500 sent again. Stopped: the others are unchanged.",
  );
  expect(some.asked).toHaveLength(1);
});

it("says what was done before it failed, and what does the rest", async () => {
  const some = letters(1_200);
  const ask = (portion: { max_messages: number }) =>
    some.asked.length < 2
      ? some.ask(portion)
      : Promise.reject(new Failure(503, "BrokerUnreachable", "It is away."));
  expect(await actOnAll(ask, Infinity, WORDS, course())).toBe(
    "1,000 sent again. It is away. Redrive all again for the rest.",
  );
});

it("throws what fails before anything was done", async () => {
  const failure = new Failure(503, "BrokerUnreachable", "It is away.");
  await expect(actOnAll(() => Promise.reject(failure), Infinity, WORDS, course())).rejects.toBe(failure);
});
