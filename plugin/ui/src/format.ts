// Numbers and instants as people read them.
import { wallClock } from "./zone";
import { TEXT } from "./texts";

const number = new Intl.NumberFormat("en");

/** A count; an estimate says so, on the same line. */
export const count = (value: number, exact = true) => `${exact ? "" : "≈\u00a0"}${number.format(value)}`;

/** A count that may leave some out: an estimate is no bound, and says only that it is one. */
export const countOf = (value: number, exact: boolean, isComplete: boolean) =>
  exact && !isComplete ? TEXT.atLeastOf(count(value)) : count(value, exact);

/** A count of things: "1 message", "2 messages", "2 retries". */
export const many = (value: number, one: string, more = `${one}s`) =>
  `${count(value)} ${value === 1 ? one : more}`;

/** A span of seconds in its two largest units, such as "2 h 5 min". */
export function span(seconds: number): string {
  const sign = seconds < 0 ? "−" : "";
  const size = Math.abs(seconds);
  if (size < 1) return TEXT.milliseconds(sign, Math.round(size * 1000));
  if (size < 60) return `${sign}${size < 10 ? Number(size.toFixed(1)) : Math.round(size)} s`;
  const units: [string, number][] = [
    ["d", 86_400],
    ["h", 3_600],
    ["min", 60],
    ["s", 1],
  ];
  const whole = Math.round(size);
  const first = units.findIndex(([, length]) => whole >= length);
  const [name, length] = units[first] ?? ["s", 1];
  const next = units[first + 1];
  const rest = next ? Math.floor((whole % length) / next[1]) : 0;
  return `${sign}${Math.floor(whole / length)} ${name}${next && rest > 0 ? ` ${rest} ${next[0]}` : ""}`;
}

/** How far an instant is from now, by the database's clock: "in 5 min", "just now" or "5 min ago". */
export function away(at: string, nowAt: string): string {
  const seconds = (Date.parse(at) - Date.parse(nowAt)) / 1000;
  if (Math.abs(seconds) < 1) return TEXT.justNow;
  return seconds >= 0 ? TEXT.inASpan(span(seconds)) : TEXT.ago(span(-seconds));
}

/** An instant in the page's time zone, to the millisecond: for what is acted on, or looked at closely. */
export const exactInstant = (at: string, zone: string) => wallClock(new Date(at), zone).replace("T", " ");

const short = new Intl.NumberFormat("en", { notation: "compact" });

/** A count in few characters, such as "50K". */
export const compact = (value: number) => short.format(value);

/** An instant beside others on an axis with such steps: "02:07", "02:07:15", "01-05 14:00" or "01-05". */
export function timeOfDay(at: string, zone: string, stepSeconds: number): string {
  const wall = wallClock(new Date(at), zone);
  if (stepSeconds < 15) return wall.slice(11, 19);
  if (stepSeconds < 1_800) return wall.slice(11, 16);
  return stepSeconds < 43_200 ? wall.slice(5, 16).replace("T", " ") : wall.slice(5, 10);
}

/** An instant in the page's time zone, to the second: for lists. */
export const instant = (at: string, zone: string) => exactInstant(at, zone).slice(0, -".000".length);

/** A long text cut in its middle, since the two ends of an id tell most. */
export const shortened = (text: string, length = 24) =>
  text.length <= length ? text : `${text.slice(0, length - 9)}…${text.slice(-8)}`;

/** Whether a text is JSON. */
export function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
