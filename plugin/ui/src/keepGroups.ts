// The numbers of the groups, where a busy broker has no time for all of them at each reading.
import type { Schemas } from "./api";

/** An older reading of more groups stays for so long. Readings are up to 90 s apart. */
const KEPT_SECONDS = 300;

type Pulse = Schemas["Pulse"];

const isPulse = (one: unknown): one is Pulse =>
  typeof one === "object" && one !== null && "groups_to" in one && "faults" in one && "wheels" in one;

/** Whether all groups were read, and what is wrong with them. */
const isWhole = (one: Pulse) => one.groups_at !== null && one.groups_to === null && one.faults !== null;

/** An answer with what was known of all groups, where it knows of some or none. The page would else name a problem, and
 * leave it out a moment later. Their numbers tell their age. */
export function keepGroups(before: unknown, answer: unknown): unknown {
  if (!isPulse(before) || !isPulse(answer) || isWhole(answer) || !isWhole(before)) return answer;
  const { dead, faults, groups_at, groups_to, lag } = before;
  const seconds = (Date.parse(answer.now_at) - Date.parse(groups_at ?? "")) / 1000;
  return seconds > KEPT_SECONDS ? answer : { ...answer, dead, faults, groups_at, groups_to, lag };
}
