// Where the chart of the time axis draws a step, an instant and a number, in pixels.
import { type AxisData, beginOf } from "./axis";
import { wallClock } from "./zone";

export const HEIGHT = 210;
export const LEFT = 44;
export const TOP = 24;
const BOTTOM = 24;
export const PLOT = HEIGHT - TOP - BOTTOM;
/** The least distance of two ticks. */
export const TICK_PIXELS = 90;
/** The distances of ticks, in seconds. */
const TICKS_SECONDS = [5, 15, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 432_000];

export type Scale = ReturnType<typeof scaleOf>;

/** The scales of a chart of this width, whose highest bar or line has `largest` messages. */
export function scaleOf(axis: AxisData, largest: number, width: number) {
  const begin = beginOf(axis, 0);
  const end = beginOf(axis, axis.steps);
  const most = roundAbove(Math.max(1, largest));
  const stepWidth = (width - LEFT) / axis.steps;
  const heightOf = (number: number) => (number / most) * PLOT;
  return {
    begin,
    end,
    heightOf,
    /** The number at the upper edge. */
    most,
    stepWidth,
    width,
    /** The left edge of a step. */
    x: (step: number) => LEFT + step * stepWidth,
    /** An instant, in milliseconds since 1970. */
    xAt: (at: number) => LEFT + ((at - begin) / (end - begin)) * (width - LEFT),
    y: (number: number) => TOP + PLOT - heightOf(number),
  };
}

/** The smallest round number that is at least this. */
function roundAbove(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 6, 8, 10].map((one) => one * power).find((one) => one >= value) ?? 10 * power;
}

/** Round instants by the clock of the zone, far enough apart for their words, in milliseconds since 1970. */
export function ticksOf({ begin, end, width }: Scale, zone: string): number[] {
  const least = ((end - begin) / Math.max(1, width - LEFT)) * TICK_PIXELS;
  const apart =
    1000 * (TICKS_SECONDS.find((one) => one * 1000 >= least) ?? Math.ceil(least / 86_400_000) * 86_400);
  const offset = Date.parse(`${wallClock(new Date(begin), zone)}Z`) - begin;
  const ticks: number[] = [];
  for (let at = Math.ceil((begin + offset) / apart) * apart - offset; at < end; at += apart) ticks.push(at);
  return ticks;
}
