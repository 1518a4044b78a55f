// The numbers of the time axis as its chart draws them: topics with their colours, bars, and the burst.
import type { Schemas } from "./api";

export type AxisData = Schemas["Axis"];
export type Bounds = { at: string; until: string };
/** A topic, or all smaller ones together, with its number in each step. */
export type Layer = { color: string; isExact: boolean[]; name: string; values: number[] };

/** Neither green nor red, which are the colours of acked and failed. */
const COLORS = ["blue", "orange", "purple", "teal", "pink", "yellow", "cyan"].map(
  (name) => `var(--chakra-colors-${name}-500)`,
);
const OTHERS_COLOR = "var(--chakra-colors-gray-500)";
const MOST_LAYERS = 5;
/** The topic that stands for all that the server has not told apart. */
const OTHERS = "";
/** A burst holds so many messages at least, and so many times what the other steps hold on average. */
const LEAST_BURST = 100;
const BURST_FACTOR = 5;

const hashOf = (name: string) => [...name].reduce((sum, one) => (sum * 31 + one.charCodeAt(0)) >>> 0, 7);

/** The colour in which each topic was first drawn. */
const known = new Map<string, string>();

/** The colour of each topic follows from its name; one whose colour is taken gets the next, and keeps it when other
 * topics come and go. */
function colorsOf(names: string[]): Map<string, string> {
  const colors = new Map<string, string>();
  const isNew = (name: string) => !known.has(name);
  for (const name of [...names].sort(
    (one, other) => Number(isNew(one)) - Number(isNew(other)) || (one < other ? -1 : 1),
  )) {
    const taken = new Set(colors.values());
    const first = hashOf(name) % COLORS.length;
    const inTurn = COLORS.map((_, index) => COLORS[(first + index) % COLORS.length]);
    const free = [known.get(name), ...inTurn].find((color) => color !== undefined && !taken.has(color));
    colors.set(name, free ?? OTHERS_COLOR);
    if (free && isNew(name)) known.set(name, free);
  }
  return colors;
}

/** The largest topics singly, all others together. */
export function layersOf(axis: AxisData, others: (topics: number) => string): Layer[] {
  const sums = new Map<string, number>();
  for (const one of axis.due) sums.set(one.topic, (sums.get(one.topic) ?? 0) + one.messages);
  const names = [...sums].sort((one, other) => other[1] - one[1]).map(([topic]) => topic);
  const shown = names
    .filter((name) => name !== OTHERS)
    .slice(0, axis.topics > MOST_LAYERS ? MOST_LAYERS - 1 : MOST_LAYERS);
  const colors = colorsOf(shown);
  const layer = (name: string, color: string): Layer => ({
    color,
    isExact: new Array<boolean>(axis.steps).fill(true),
    name,
    values: new Array<number>(axis.steps).fill(0),
  });
  const layers = shown.map((name) => layer(name, colors.get(name) ?? OTHERS_COLOR));
  if (axis.topics > shown.length) layers.push(layer(others(axis.topics - shown.length), OTHERS_COLOR));
  for (const one of axis.due) {
    const place = shown.indexOf(one.topic);
    const found = layers[place < 0 ? layers.length - 1 : place];
    if (!found || one.step < 0 || one.step >= axis.steps) continue;
    found.values[one.step] = (found.values[one.step] ?? 0) + one.messages;
    if (!one.exact) found.isExact[one.step] = false;
  }
  return layers;
}

/** Where a step begins, in milliseconds since 1970. */
export const beginOf = (axis: AxisData, step: number) =>
  Date.parse(axis.from_at) + step * axis.step_seconds * 1000;

/** The instants between which the steps from one to another lie, in either order. */
export const boundsOf = (axis: AxisData, one: number, other = one): Bounds => ({
  at: new Date(beginOf(axis, Math.min(one, other))).toISOString(),
  until: new Date(beginOf(axis, Math.max(one, other) + 1)).toISOString(),
});

export type Sum = { exact: boolean; messages: number };

/** How many messages the steps from one on and before another hold. */
export function sumOf(axis: AxisData, from = 0, to = axis.steps): Sum {
  const within = axis.due.filter((one) => one.step >= from && one.step < to);
  return {
    exact: within.every((one) => one.exact),
    messages: within.reduce((sum, one) => sum + one.messages, 0),
  };
}

/** How many messages are due before now and after it. */
export function sidesOf(axis: AxisData): { due: Sum; released: Sum } {
  const [before, after] = [sumOf(axis, 0, axis.past_steps), sumOf(axis, axis.past_steps)];
  return {
    due: {
      exact: after.exact && axis.past_messages_is_exact,
      messages: Math.max(0, after.messages - axis.past_messages),
    },
    released: {
      exact: before.exact && axis.past_messages_is_exact,
      messages: before.messages + axis.past_messages,
    },
  };
}

export type Burst = { at: string; exact: boolean; messages: number; step: number; topic: string };

/** The largest number of messages of a topic in a step, if it stands out. */
export function burstOf(axis: AxisData): Burst | undefined {
  const named = axis.due.filter((one) => one.topic !== OTHERS);
  const largest = named.reduce<Schemas["DueStep"] | undefined>(
    (most, one) => (most === undefined || one.messages > most.messages ? one : most),
    undefined,
  );
  if (!largest || largest.messages < LEAST_BURST) return undefined;
  const others = new Set(axis.due.map((one) => one.step)).size - 1;
  const average = (sumOf(axis).messages - largest.messages) / Math.max(1, others);
  return largest.messages < average * BURST_FACTOR
    ? undefined
    : { ...largest, at: boundsOf(axis, largest.step).at };
}
