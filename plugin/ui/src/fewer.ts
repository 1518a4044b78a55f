// Why an act has found fewer than its preview had counted: another user may have acted meanwhile.
import { Failure, type Schemas, get, ofBroker } from "./api";
import type { Counted } from "./Asking";
import { count, timeOfDay } from "./format";
import { TEXT } from "./texts";
import { zoneNow } from "./zone";

type Where = { broker: string; group?: string; topic?: string };

/** What became of dead letters, and of waiting messages, by each action. */
const OF_LETTERS: Record<string, string> = {
  discard: TEXT.stateDiscarded,
  redrive: TEXT.sentAgain,
  resend: TEXT.stateEdited,
};
const OF_MESSAGES: Record<string, string> = {
  recall: TEXT.stateRecalled,
  recall_matching: TEXT.stateRecalled,
  reschedule: TEXT.outcomeRescheduled,
  reschedule_matching: TEXT.outcomeRescheduled,
};

/** Why messages or dead letters are missing: a line, or none. */
export async function fewer(
  { broker, ...of }: Where,
  counted: Counted | undefined,
  matched: number,
): Promise<string[]> {
  const missing = (counted?.number ?? 0) - matched;
  if (!counted || missing <= 0) return [];
  const words = TEXT.shareOf(count(missing), count(counted.number));
  const isOfMessages = of.group === undefined;
  const doneBy = isOfMessages ? OF_MESSAGES : OF_LETTERS;
  const within_seconds = Math.ceil((performance.now() - counted.at) / 1000) + 1;
  try {
    const { actions } = await get<Schemas["RecentActions"]>(ofBroker(broker, "recent-actions"), {
      ...of,
      within_seconds,
    });
    const others = actions.filter(({ action }) => action in doneBy);
    const last = others.at(-1);
    if (last) {
      const done = [...new Set(others.map(({ action }) => doneBy[action]))].join(TEXT.orBetween);
      const at = timeOfDay(last.at, zoneNow(), 60);
      return [
        isOfMessages ? TEXT.noLongerWaited(words, done, at) : TEXT.byAnotherUser(words, missing, done, at),
      ];
    }
  } catch (error) {
    // The act has its outcome, and the dialog shows it without a reason.
    if (!(error instanceof Failure)) throw error;
  }
  return [isOfMessages ? TEXT.noLongerWaitedMeanwhile(words) : TEXT.goneMeanwhile(words, missing)];
}
