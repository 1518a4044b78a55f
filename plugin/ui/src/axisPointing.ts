// What a mouse or a finger does on the time axis: it shows a step, opens one, or marks several to zoom into.
import { type PointerEvent, useState } from "react";

/** The step that the pointer is on. */
function stepAt({ target }: PointerEvent): number | undefined {
  const step = target instanceof Element ? target.getAttribute("data-step") : null;
  return step === null ? undefined : Number(step);
}

type Props = {
  /** Called after a click on a step. */
  open: (step: number) => void;
  /** Called after a drag, with its first and its last step. */
  zoom: (from: number, to: number) => void;
};

/** The step under the pointer, the steps that a drag marks, and the handlers for the element around all steps. */
export function usePointing({ open, zoom }: Props) {
  const [hover, setHover] = useState<number>();
  const [pressed, setPressed] = useState<number>();
  const leave = () => {
    setHover(undefined);
    setPressed(undefined);
  };
  const isDrag = pressed !== undefined && hover !== undefined && pressed !== hover;
  return {
    handlers: {
      onPointerCancel: leave,
      onPointerDown: (event: PointerEvent) => {
        // A browser sends all events of a finger to the element that it touched first, unless the page releases it.
        const { pointerId, target } = event;
        if (target instanceof Element && target.hasPointerCapture(pointerId))
          target.releasePointerCapture(pointerId);
        setPressed(event.button === 0 ? stepAt(event) : undefined);
      },
      onPointerLeave: leave,
      onPointerMove: (event: PointerEvent) => setHover(stepAt(event)),
      onPointerUp: (event: PointerEvent) => {
        const to = stepAt(event);
        if (pressed !== undefined && to !== undefined) {
          if (to === pressed) open(to);
          else zoom(pressed, to);
        }
        setPressed(undefined);
      },
    },
    hover,
    /** The first and the last step, from left to right. */
    marked: isDrag ? ([Math.min(pressed, hover), Math.max(pressed, hover)] as const) : undefined,
  };
}

/** A finger that moves up or down scrolls the page, and two fingers enlarge it; sideways it drags on the axis. */
export const TOUCH = { touchAction: "pan-y pinch-zoom", userSelect: "none" } as const;
