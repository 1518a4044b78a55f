// The time zone of the page is the one that is chosen in Airflow's own menu.
import { useSyncExternalStore } from "react";
import { whenStored } from "./stored";

/** Where Airflow's pages keep the choice; without one they show the browser's zone. */
const KEY = "timezone";

const formats = new Map<string, Intl.DateTimeFormat>();

function formatOf(zone: string): Intl.DateTimeFormat {
  let format = formats.get(zone);
  if (!format) {
    format = new Intl.DateTimeFormat("en", {
      day: "2-digit",
      fractionalSecondDigits: 3,
      hour: "2-digit",
      hourCycle: "h23",
      minute: "2-digit",
      month: "2-digit",
      second: "2-digit",
      timeZone: zone,
      year: "numeric",
    });
    formats.set(zone, format);
  }
  return format;
}

function isZone(zone: unknown): zone is string {
  try {
    return typeof zone === "string" && formatOf(zone) !== undefined;
  } catch {
    return false;
  }
}

/** The zone of the page's instants, such as "Europe/Berlin". */
export function zoneNow(): string {
  const chosen = /^"(.*)"$/.exec(localStorage.getItem(KEY) ?? "")?.[1];
  return isZone(chosen) ? chosen : Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** The zone of the page's instants; what uses it is drawn again when another one is chosen. */
export const useZone = () => useSyncExternalStore(whenStored, zoneNow);

/** An instant as a clock in the zone shows it: "2026-01-05T10:00:00.000". */
export function wallClock(at: Date, zone: string): string {
  const part = Object.fromEntries(
    formatOf(zone)
      .formatToParts(at)
      .map((one) => [one.type, one.value]),
  );
  const { day, fractionalSecond, hour, minute, month, second, year } = part as Record<string, string>;
  return `${year?.padStart(4, "0")}-${month}-${day}T${hour}:${minute}:${second}.${fractionalSecond}`;
}

/** The value of a `datetime-local` field as an instant in UTC; undefined if it has none. */
export function fromWall(value: string, zone: string): string | undefined {
  const asUtc = Date.parse(`${value}Z`);
  if (value === "" || Number.isNaN(asUtc)) return undefined;
  const offsetAt = (at: number) => Date.parse(`${wallClock(new Date(at), zone)}Z`) - at;
  // The offset of about then, and with it the one of then.
  return new Date(asUtc - offsetAt(asUtc - offsetAt(asUtc))).toISOString();
}

/** An instant as the value of a `datetime-local` field. */
export const toWall = (at: string, zone: string) => wallClock(new Date(at), zone).replace(/(:00)?\.000$/, "");

/** Whether a text is an instant that says its zone: one link is the same instant for every reader. */
export const isInstant = (text: string) =>
  /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)$/.test(text) &&
  !Number.isNaN(Date.parse(text));
