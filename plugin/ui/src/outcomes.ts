// The outcomes for messages, as one sentence for each kind of outcome.
import { Failure, type Schemas } from "./api";
import { TEXT } from "./texts";

type Outcome = Schemas["Outcome"];

const WORDS: Record<string, string> = {
  due_now: TEXT.dueNow,
  already_released: TEXT.alreadyReleasedItWasTooLate,
  not_found: TEXT.notFoundRecalledBeforeOrNo,
  not_tried: TEXT.notTried,
  not_waiting: TEXT.notWaitingForARetryAny,
  recalled: TEXT.recalledNeverDelivered,
  refused: TEXT.outcomeRefused,
  replaced: TEXT.replacedByAnotherMessageBefore,
  rescheduled: TEXT.outcomeRescheduled,
  unknown: TEXT.outcomeUnknownCheckTheList,
};

const OF_ANSWERS: Record<string, string> = {
  already_answered: TEXT.anEarlierAnswerCounts,
  answered: TEXT.theRunContinuesWithThisAnswer,
  not_found: TEXT.noRunWaitsUnderThisKey,
  recalled: TEXT.theWaitWasRecalledBefore,
  too_late: TEXT.tooLateTheRunHasTimedOut,
};

export function toldOfAnswer({ new_message_id, outcome }: Outcome): string {
  const words = OF_ANSWERS[outcome] ?? outcome;
  return !new_message_id ? words : `${words}\n${TEXT.itWentToTheWaitThat(new_message_id)}`;
}

export function told(outcomes: Outcome[]): string {
  const counts = new Map<string, number>();
  for (const one of outcomes) counts.set(one.outcome, (counts.get(one.outcome) ?? 0) + 1);
  const lines = [...counts].map(([outcome, number]) => `${number} ${WORDS[outcome] ?? outcome}`);
  const refusal = outcomes.find((one) => one.detail)?.detail;
  return [...lines, ...(refusal ? [refusal] : [])].join("\n") || TEXT.nothingWasLeftToDo;
}

/** The parts of a list that one request takes. */
export function* portions<T>(all: T[], size: number): Generator<T[]> {
  for (let start = 0; start < all.length; start += size) yield all.slice(start, start + size);
}

/** The messages of one request, and the request. */
export type Part = { act: () => Promise<Outcome[]>; ids: string[] };

/** Carry out one part after another, until the user stops it or the broker fails. Outcomes of finished parts are
 * reported in any case. The outcome of a part whose answer did not arrive is unknown. */
export async function actOnEach(
  parts: Part[],
  tell: (done: number) => void,
  isStopped: () => boolean,
): Promise<Outcome[]> {
  const outcomes: Outcome[] = [];
  for (const { act, ids } of parts) {
    if (isStopped()) break;
    try {
      outcomes.push(...(await act()));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      const wasRefused = error.wasCarriedOut === false;
      if (wasRefused && outcomes.length === 0) throw error;
      outcomes.push(...ids.map((id) => outcomeOf(id, wasRefused ? "not_tried" : "unknown", error.message)));
      break;
    }
    if (outcomes.at(-1)?.outcome === "not_tried") break;
    tell(outcomes.length);
  }
  const all = parts.flatMap(({ ids }) => ids);
  return [...outcomes, ...all.slice(outcomes.length).map((id) => outcomeOf(id, "not_tried"))];
}

const outcomeOf = (id: string, outcome: string, detail: string | null = null): Outcome => ({
  deliver_at: null,
  detail,
  message_id: id,
  new_message_id: null,
  outcome,
});
