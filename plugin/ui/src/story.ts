// What became of a message, from its history: one line for itself, then one for each group that received it.
import type { Schemas } from "./api";
import { span } from "./format";
import { TEXT } from "./texts";

type Entry = Schemas["HistoryEntry"];
type One = Schemas["OneMessage"];

/** A stretch of time in one state, in milliseconds since 1970. The last one may reach beyond now. */
export type Stretch = { from: number; state: string; to: number };

/** A line of the story. `last` is the event that it ends with; `heir` the message that took this one's place. */
export type Line = {
  group: string | null;
  heir: string | undefined;
  last: Entry | undefined;
  sentence: string;
  stretches: Stretch[];
};

/** The words for what a message was deleted by, as the history has them. */
const DELETED: [reason: RegExp, state: string][] = [
  [/^answered$/, "answered"],
  [/^discarded as a dead letter$/, "discarded"],
  [/^replaced by /, "replaced"],
  [/^taken back /, "taken_back"],
  [/^its /, "expired"],
];

/** States after which nothing follows by itself. */
const FINAL: Record<string, true> = { Acked: true, DLQ: true, Deleted: true, Moved: true, Skipped: true };

/** What became of a message at an event: a deletion says which kind it was. */
export function kindOf({ consumer_group, reason, state }: Entry, editedTo: Record<string, string>): string {
  if (state !== "Deleted") return state;
  const kind = DELETED.find(([words]) => words.test(reason ?? ""))?.[1] ?? "recalled";
  return kind === "discarded" && consumer_group !== null && consumer_group in editedTo ? "edited" : kind;
}

/** The message that took the place of this one at an event. */
export function heirOf(entry: Entry, one: One): string | undefined {
  const kind = kindOf(entry, one.edited_to);
  if (kind === "edited") return one.edited_to[entry.consumer_group ?? ""];
  return kind === "replaced" ? entry.reason?.replace(/^replaced by /, "") : undefined;
}

export function storyOf(one: One): Line[] {
  const of = (group: string | null) => one.history.filter((entry) => entry.consumer_group === group);
  const groups = [...new Set(one.history.map((entry) => entry.consumer_group))].filter(
    (group) => group !== null,
  );
  const own = of(null);
  const lines = groups.map((group) => line(group, [...own, ...of(group)], one));
  // Once a group has it, the message's own line says no more than theirs.
  return lines.length > 0 ? lines : [line(null, own, one)];
}

function line(group: string | null, entries: Entry[], one: One): Line {
  const last = entries.at(-1);
  return {
    group,
    heir: last && heirOf(last, one),
    last,
    sentence: last ? sentenceOf(last, group, one) : "",
    stretches: stretchesOf(entries, one),
  };
}

const since = (at: string | null, nowAt: string) =>
  span(Math.max(0, (Date.parse(nowAt) - Date.parse(at ?? nowAt)) / 1000));

function sentenceOf(last: Entry, group: string | null, one: One): string {
  const ago = since(last.at, one.now_at);
  const attempt = last.attempt ?? 1;
  const reason = last.reason ?? TEXT.noReason;
  const isDue = Date.parse(one.deliver_at) <= Date.parse(one.now_at);
  switch (kindOf(last, one.edited_to)) {
    case "Acked":
      return attempt > 1 ? TEXT.storyHandledAtAttempt(ago, attempt) : TEXT.storyHandled(ago);
    case "DLQ":
      return TEXT.storyDead(times(attempt), reason, ago);
    case "Inflight":
      return attempt > 1 ? TEXT.storyRunningAtAttempt(ago, attempt) : TEXT.storyRunning(ago);
    case "Ready":
      return group === null ? TEXT.storyReceivedByNone(ago) : TEXT.storyReadyAgain(ago, attempt);
    case "Skipped":
      return TEXT.storySkipped(ago, reason);
    case "WaitingRetry":
      return attempt > 1 && !reason.startsWith("redriven")
        ? TEXT.storyRetried(times(attempt - 1), reason, since(one.now_at, last.until_at ?? one.now_at))
        : TEXT.storyComesAgain(reason, since(one.now_at, last.until_at ?? one.now_at));
    case "answered":
      return TEXT.storyAnswered(since(last.at, one.deliver_at));
    case "discarded":
      return TEXT.storyDiscarded(ago);
    case "edited":
      return TEXT.storyEdited(ago);
    case "expired":
      return TEXT.storyExpired(ago, reason);
    case "recalled":
      return TEXT.storyRecalled(since(last.at, one.deliver_at));
    case "replaced":
      return TEXT.storyReplaced(since(last.at, one.deliver_at));
    case "taken_back":
      return TEXT.storyTakenBack(ago);
    default:
      return isDue
        ? TEXT.storyNotReleased(since(one.deliver_at, one.now_at))
        : TEXT.storyWaits(since(one.now_at, one.deliver_at));
  }
}

const times = (count: number) => (count === 1 ? TEXT.once : TEXT.times(count));

/** The time in each state; a state without an instant has none. */
function stretchesOf(entries: Entry[], one: One): Stretch[] {
  const known = entries.filter((entry) => entry.at !== null && entry.state !== "Initialized");
  const now = Date.parse(one.now_at);
  return known.map((entry, index) => {
    const from = Date.parse(entry.at ?? one.now_at);
    const next = known[index + 1]?.at;
    // The end of a lease lies ahead, and may never come. A waiting message comes at its instant, or is late.
    const open = entry.state === "Inflight" ? now : Math.max(now, Date.parse(entry.until_at ?? one.now_at));
    return {
      from,
      state: kindOf(entry, one.edited_to),
      to: next ? Date.parse(next) : entry.state in FINAL ? from : Math.max(from, open),
    };
  });
}
