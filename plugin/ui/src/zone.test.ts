// @vitest-environment jsdom
import { afterEach, describe, expect, it } from "vitest";
import { fromWall, isInstant, toWall, zoneNow } from "./zone";

afterEach(() => localStorage.clear());

describe("a clock on the wall", () => {
  it.each([
    ["2026-01-05T10:00", "Europe/Berlin", "2026-01-05T09:00:00.000Z"],
    ["2026-07-05T10:00:30", "Europe/Berlin", "2026-07-05T08:00:30.000Z"],
    ["2026-01-05T10:00", "Asia/Kathmandu", "2026-01-05T04:15:00.000Z"],
    // The hours before and after the clock is set forward, then before and after it is set back.
    ["2026-03-29T01:30", "Europe/Berlin", "2026-03-29T00:30:00.000Z"],
    ["2026-03-29T03:30", "Europe/Berlin", "2026-03-29T01:30:00.000Z"],
    ["2026-10-25T01:30", "Europe/Berlin", "2026-10-24T23:30:00.000Z"],
    ["2026-10-25T03:30", "Europe/Berlin", "2026-10-25T02:30:00.000Z"],
  ])("that shows %s in %s stands for %s", (value, zone, at) => {
    expect(fromWall(value, zone)).toBe(at);
    expect(toWall(at, zone)).toBe(value);
  });

  it("that shows nothing stands for nothing", () => {
    expect(fromWall("", "UTC")).toBeUndefined();
  });
});

describe("the zone", () => {
  it("is the one that was chosen in Airflow's menu", () => {
    localStorage.setItem("timezone", '"America/New_York"');
    expect(zoneNow()).toBe("America/New_York");
  });

  it.each([null, '"nowhere"', "{}"])("is the browser's where Airflow's storage has %s", (stored) => {
    if (stored) localStorage.setItem("timezone", stored);
    expect(zoneNow()).toBe(Intl.DateTimeFormat().resolvedOptions().timeZone);
  });
});

it.each([
  ["2026-01-05T10:00:00Z", true],
  ["2026-01-05T10:00+01:00", true],
  ["2026-01-05T10:00", false],
  ["garbage", false],
  ["2026-13-05T10:00:00Z", false],
])("whether %s is an instant: %s", (text, is) => {
  expect(isInstant(text)).toBe(is);
});
