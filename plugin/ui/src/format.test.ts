import { describe, expect, it } from "vitest";
import { away, count, countOf, exactInstant, instant, many, shortened, span } from "./format";

describe("a span", () => {
  it.each([
    [0.0042, "4 ms"],
    [1.25, "1.3 s"],
    [59.6, "60 s"],
    [61, "1 min 1 s"],
    [3_600, "1 h"],
    [90_061, "1 d 1 h"],
    [-5, "−5 s"],
  ])("of %d s is %s", (seconds, words) => {
    expect(span(seconds)).toBe(words);
  });
});

it("tells how far away an instant is", () => {
  expect(away("2026-01-01T00:05:00Z", "2026-01-01T00:00:00Z")).toBe("in 5 min");
  expect(away("2026-01-01T00:00:00Z", "2026-01-01T00:00:30Z")).toBe("30 s ago");
  // Read a moment after the clock, or of a machine whose clock is a little ahead.
  expect(away("2026-01-01T00:00:00.212Z", "2026-01-01T00:00:00Z")).toBe("just now");
});

it("says that a count is an estimate", () => {
  expect(count(12_345)).toBe("12,345");
  expect(count(12_345, false)).toBe("≈\u00a012,345");
});

it("says of a count that it leaves some out, unless it is an estimate", () => {
  expect(countOf(3, true, true)).toBe("3");
  expect(countOf(3, true, false)).toBe("at least 3");
  expect(countOf(3, false, false)).toBe("≈\u00a03");
});

it("tells an instant in a time zone", () => {
  expect(exactInstant("2026-01-05T09:00:00.25Z", "Europe/Berlin")).toBe("2026-01-05 10:00:00.250");
  expect(instant("2026-01-05T09:00:00.25Z", "Europe/Berlin")).toBe("2026-01-05 10:00:00");
});

it("keeps both ends of an id", () => {
  expect(shortened("0123456789".repeat(5))).toBe("012345678901234…23456789");
});

it("counts things", () => {
  expect([0, 1, 2_000].map((value) => many(value, "message"))).toEqual([
    "0 messages",
    "1 message",
    "2,000 messages",
  ]);
});
