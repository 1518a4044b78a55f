import { expect, test } from "vitest";
import { HEIGHT, LEFT, PLOT, TICK_PIXELS, TOP, scaleOf, ticksOf } from "./axisScale";
import * as shop from "./testing/shop";

/** Two hours in steps of a minute, from nine to eleven in UTC. */
const axis = shop.axis([]);
const WIDTH = LEFT + 1_200;
const scale = scaleOf(axis, 0, WIDTH);

test("steps and instants have the same places, from edge to edge", () => {
  expect([scale.x(0), scale.x(60), scale.x(120)]).toEqual([LEFT, LEFT + 600, WIDTH]);
  expect(scale.stepWidth).toBe(10);
  expect(scale.xAt(Date.parse("2030-01-05T10:00:00Z"))).toBe(scale.x(60));
});

test.each([
  [0, 1],
  [1, 1],
  [5, 6],
  [97, 100],
  [1_001, 2_000],
  [50_000, 60_000],
])("the upper edge above %i is %i", (largest, most) => {
  const { heightOf, most: found, y } = scaleOf(axis, largest, WIDTH);
  expect(found).toBe(most);
  expect([y(0), y(most)]).toEqual([TOP + PLOT, TOP]);
  expect(heightOf(most / 2)).toBe(PLOT / 2);
  expect(y(0)).toBeLessThan(HEIGHT);
});

test.each([
  [1_200, 10],
  [600, 30],
  [200, 60],
])("ticks of a chart of %i pixels are %i minutes apart", (width, minutes) => {
  const ticks = ticksOf(scaleOf(axis, 0, LEFT + width), "UTC");
  const apart = ticks.slice(1).map((at, index) => (at - (ticks[index] ?? 0)) / 60_000);
  expect(new Set(apart)).toEqual(new Set([minutes]));
  expect((minutes / 120) * width).toBeGreaterThanOrEqual(TICK_PIXELS);
});

test("ticks are round by the clock of the zone", () => {
  const month = { ...axis, step_seconds: 21_600 };
  const days = ticksOf(scaleOf(month, 0, LEFT + 4_000), "Asia/Kolkata");
  expect(days.slice(0, 2).map((at) => new Date(at).toISOString())).toEqual([
    "2030-01-05T18:30:00.000Z",
    "2030-01-06T18:30:00.000Z",
  ]);
});
