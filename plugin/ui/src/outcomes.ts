// What became of each message, told as one sentence for each kind of outcome.
import type { Schemas } from "./api";

const WORDS: Record<string, string> = {
  already_released: "already released: it was too late",
  not_found: "not found: recalled before, or not kept any more",
  recalled: "recalled: never delivered",
  refused: "refused",
  rescheduled: "rescheduled",
};

export function told(outcomes: Schemas["Outcome"][]): string {
  const counts = new Map<string, number>();
  for (const one of outcomes) counts.set(one.outcome, (counts.get(one.outcome) ?? 0) + 1);
  const lines = [...counts].map(([outcome, number]) => `${number} ${WORDS[outcome] ?? outcome}`);
  const refusal = outcomes.find((one) => one.detail)?.detail;
  return [...lines, ...(refusal ? [refusal] : [])].join("\n") || "Nothing was left to do.";
}

/** The parts of a list that one request takes. */
export function* portions<T>(all: T[], size: number): Generator<T[]> {
  for (let start = 0; start < all.length; start += size) yield all.slice(start, start + size);
}
