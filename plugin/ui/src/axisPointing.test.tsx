import { cleanup, fireEvent, render } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { usePointing } from "./axisPointing";

const open = vi.fn();
const zoom = vi.fn();

afterEach(() => {
  cleanup();
  vi.clearAllMocks();
});

function Steps() {
  const { handlers, hover, marked } = usePointing({ open, zoom });
  return (
    <div data-hover={hover} data-marked={marked} {...handlers}>
      {[0, 1, 2, 3].map((step) => (
        <i data-step={step} key={step} />
      ))}
      <b />
    </div>
  );
}

/** The chart, its steps, and the data attributes of the chart. */
function steps() {
  const { container } = render(<Steps />);
  const part = (selector: string) => {
    const found = container.querySelector<HTMLElement>(selector);
    if (!found) throw new Error(`There is no ${selector}.`);
    return found;
  };
  return {
    around: part("div"),
    beside: part("b"),
    shown: () => ({ ...part("div").dataset }),
    step: (number: number) => part(`[data-step="${number}"]`),
  };
}

/** A finger as browsers report it: the element that it touches first gets all its events, until it is released. */
function finger(first: HTMLElement) {
  let isCaptured = true;
  first.hasPointerCapture = () => isCaptured;
  first.releasePointerCapture = () => (isCaptured = false);
  const target = (one: HTMLElement) => (isCaptured ? first : one);
  const touch = { button: 0, pointerId: 7, pointerType: "touch" };
  fireEvent.pointerDown(first, touch);
  return {
    lift: (one: HTMLElement) => fireEvent.pointerUp(target(one), touch),
    move: (one: HTMLElement) => fireEvent.pointerMove(target(one), touch),
  };
}

test("a click opens a step", () => {
  const { beside, step } = steps();
  const pressed = { button: 0, pointerId: 1 };
  step(2).hasPointerCapture = () => false;
  fireEvent.pointerDown(step(2), pressed);
  fireEvent.pointerUp(step(2), pressed);
  expect(open.mock.calls).toEqual([[2]]);
  // Neither another button nor a place without a step does.
  for (const [one, button] of [
    [step(2), 2],
    [beside, 0],
  ] as const) {
    one.hasPointerCapture = () => false;
    fireEvent.pointerDown(one, { ...pressed, button });
    fireEvent.pointerUp(one, { ...pressed, button });
  }
  expect(open).toHaveBeenCalledTimes(1);
  expect(zoom).not.toHaveBeenCalled();
});

test("a drag by touch marks steps and zooms into them", () => {
  const { shown, step } = steps();
  const { lift, move } = finger(step(3));
  move(step(1));
  expect(shown()).toEqual({ hover: "1", marked: "1,3" });
  lift(step(1));
  expect(zoom.mock.calls).toEqual([[3, 1]]);
  expect(open).not.toHaveBeenCalled();
  expect(shown()).toEqual({ hover: "1" });
});

test.each(["pointerCancel", "pointerLeave"] as const)("after %s nothing is marked or opened", (event) => {
  const { around, shown, step } = steps();
  const { lift, move } = finger(step(0));
  move(step(1));
  fireEvent[event](around);
  expect(shown()).toEqual({});
  lift(step(1));
  expect(open).not.toHaveBeenCalled();
  expect(zoom).not.toHaveBeenCalled();
});
