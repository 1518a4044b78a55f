// An action on all dead letters that match: one portion after another, so that other requests get their turn.
import { Failure } from "./api";
import type { Course } from "./Asking";
import { count } from "./format";
import { TEXT } from "./texts";

/** As many as one portion has at most. */
const AT_ONCE = 500;

type Portion = { after: string | null; max_messages: number };

type Sayings = { action: string; whyFewer: (done: number) => Promise<string[]>; words: string };

/** Carries it out and tells what came of it: to its end, to where the user stopped it, or to where it failed. A rate is
 * a number in each second; a portion is no larger than what is due in one, and the next one waits until then. */
export async function actOnAll(
  ask: (portion: Portion) => Promise<{ done: number; next: string | null }>,
  perSecond: number,
  { action, whyFewer, words }: Sayings,
  { isStopped, pause, tell }: Pick<Course, "isStopped" | "pause" | "tell">,
): Promise<string> {
  const portion = Math.max(1, Math.min(Math.floor(perSecond), AT_ONCE));
  let after: string | null = null;
  let sum = 0;
  try {
    for (;;) {
      const { done, next } = await ask({ after, max_messages: portion });
      sum += done;
      if (next === null) return [TEXT.someDone(count(sum), words), ...(await whyFewer(sum))].join("\n");
      after = next;
      tell(TEXT.someDoneSoFar(count(sum), words));
      if (Number.isFinite(perSecond) && !isStopped()) await pause(portion / perSecond);
      if (isStopped()) return TEXT.stoppedAfterSome(count(sum), words);
    }
  } catch (error) {
    if (sum === 0 || !(error instanceof Failure)) throw error;
    return TEXT.againForTheRest(count(sum), words, error.message, action);
  }
}
