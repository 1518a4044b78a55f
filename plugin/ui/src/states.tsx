import { Badge } from "@chakra-ui/react";
import { TEXT } from "./texts";

/** The words for the states of a message, wherever they come from, with their colours. */
export const STATES: Record<string, [words: string, palette: string]> = {
  Acked: [TEXT.stateAcked, "green"],
  DLQ: [TEXT.deadLetter, "red"],
  Deleted: [TEXT.stateRecalled, "gray"],
  Inflight: [TEXT.stateInFlight, "blue"],
  Initialized: [TEXT.stateSent, "gray"],
  Moved: [TEXT.stateMoved, "gray"],
  Ready: [TEXT.stateReleased, "cyan"],
  Skipped: [TEXT.stateSkipped, "gray"],
  Timing: [TEXT.stateWaiting, "purple"],
  WaitingRetry: [TEXT.stateWaitingForARetry, "orange"],
  answered: [TEXT.stateAnswered, "green"],
  discarded: [TEXT.stateDiscarded, "gray"],
  edited: [TEXT.stateEdited, "blue"],
  expired: [TEXT.stateExpired, "gray"],
  moved: [TEXT.stateMoved, "gray"],
  recalled: [TEXT.stateRecalled, "gray"],
  released: [TEXT.stateReleased, "cyan"],
  replaced: [TEXT.stateReplaced, "blue"],
  taken_back: [TEXT.stateTakenBack, "gray"],
  waiting: [TEXT.stateWaiting, "purple"],
};

export function State({ of }: { of: string }) {
  const [words, palette] = STATES[of] ?? [of, "gray"];
  return <Badge colorPalette={palette}>{words}</Badge>;
}
