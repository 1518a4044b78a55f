// The state of a group on a topic in a sentence, and its numbers in words.
import type { Schemas } from "./api";
import { count, many, span } from "./format";
import { TEXT } from "./texts";

type Group = Schemas["GroupNumbers"];

/** Of each queue so many ready messages are counted. */
const MOST_READY = 10_000;

/** How many are ready: where a queue may have more, at least so many. */
export const readyWords = (ready: number) => (ready < MOST_READY ? "" : TEXT.atLeast) + count(ready);

/** How many are in flight: counted in a bounded number of leases, and not where there was no time. */
export const inflightWords = ({ inflight, inflight_is_exact }: Group) =>
  inflight_is_exact ? count(inflight) : inflight > 0 ? TEXT.atLeast + count(inflight) : TEXT.notCounted;

/** The same with what they are. */
export const manyReady = (ready: number) =>
  (ready < MOST_READY ? "" : TEXT.atLeast) + many(ready, TEXT.readyMessage);

const since = (at: string, nowAt: string) => span(Math.max(0, (Date.parse(nowAt) - Date.parse(at)) / 1000));

/** Whether a group receives, and if not why; then what of it failed. */
export function groupStory(one: Group, nowAt: string): string {
  const more = [
    one.waiting_retry > 0 && TEXT.groupRetries(many(one.waiting_retry, TEXT.nounMessage), one.waiting_retry),
    one.dead > 0 && TEXT.groupDead(many(one.dead, TEXT.deadLetter)),
  ];
  return [receiving(one, nowAt), ...more].filter(Boolean).join(" ");
}

function receiving(one: Group, nowAt: string): string {
  const ready = manyReady(one.ready);
  if (one.paused_at !== null)
    return one.ready > 0
      ? TEXT.groupPausedWith(since(one.paused_at, nowAt), ready)
      : TEXT.groupPaused(since(one.paused_at, nowAt));
  if (one.abandoned_since !== null)
    return TEXT.groupAbandoned(since(one.abandoned_since, nowAt), many(one.kept_messages, TEXT.nounMessage));
  if (one.idle_since !== null) return TEXT.groupStalled(since(one.idle_since, nowAt), ready);
  const inflight = TEXT.groupInFlight(inflightWords(one));
  if (one.ready === 0 || one.oldest_deliver_at === null) return TEXT.groupUpToDate(inflight);
  return TEXT.groupReady(ready, since(one.oldest_deliver_at, nowAt), inflight);
}
