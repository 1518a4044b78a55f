import { Box, Button, Text } from "@chakra-ui/react";
import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { count, instant } from "./format";
import { useZone } from "./zone";
import { TEXT } from "./texts";

export type Series = { color: string; label: string; values: (number | null)[] };

type Props = {
  bars?: boolean;
  height?: number;
  label: string;
  /** Seconds since 1970. */
  at: number[];
  /** From this step on there may be more than the values say: the chart is hatched there. */
  countedSteps?: number;
  /** Where a click on a step leads. */
  open?: (step: number) => void;
  series: Series[];
};

/** The step that the mouse is on, and where that is. */
type Hover = { left: number; step: number };

/** A variable of Airflow's theme, as a colour for the canvas. */
const themed = (name: string) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--chakra-colors-${name}`).trim() || "gray";

/** Counts whenever Airflow changes between light and dark. */
function useTheme(): number {
  const [changes, setChanges] = useState(0);
  useEffect(() => {
    const observer = new MutationObserver(() => setChanges((before) => before + 1));
    observer.observe(document.documentElement, { attributeFilter: ["class", "data-theme"] });
    return () => observer.disconnect();
  }, []);
  return changes;
}

/** Bars on each other, or lines, over time; a screen reader hears `label`. */
export function Chart({
  at,
  bars = false,
  countedSteps = at.length,
  height = 180,
  label,
  open,
  series,
}: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const theme = useTheme();
  const zone = useZone();
  const [hover, setHover] = useState<Hover>();
  const [isPart, setIsPart] = useState(false);
  // Another shape needs a new plot; other values only redraw it.
  const step = (at[1] ?? 0) - (at[0] ?? 0);
  const shape = JSON.stringify([
    bars,
    height,
    theme,
    series.map((one) => [one.color, one.label]),
    step,
    zone,
  ]);
  const data = [at, ...(bars ? stacked(series) : series.map((one) => one.values))] as uPlot.AlignedData;
  const drawn = useRef(data);
  const counted = useRef(countedSteps);
  const opened = useRef(open);
  useEffect(() => {
    drawn.current = data;
    counted.current = countedSteps;
    opened.current = open;
  });

  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const text = themed("fg-muted");
    const grid = { stroke: themed("border"), width: 1 };
    const axis = { font: "12px sans-serif", grid, stroke: text, ticks: grid };
    const [start = 0, next = 0] = drawn.current[0];
    const format = uPlot.fmtDate(
      next - start < 60 ? "{HH}:{mm}:{ss}" : next - start < 3_600 ? "{HH}:{mm}" : "{D} {MMM} {HH}:{mm}",
    );
    const times = (_: uPlot, ticks: number[]) =>
      ticks.map((tick) => format(uPlot.tzDate(new Date(tick * 1000), zone)));
    const [, , , kinds] = JSON.parse(shape) as [boolean, number, number, [string, string][], number];
    const made = new uPlot(
      {
        // Where a day begins, and so which ticks there are.
        tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), zone),
        axes: [
          { ...axis, space: 90, values: times },
          {
            ...axis,
            size: AXIS_WIDTH,
            values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? `${tick}` : "")),
          },
        ],
        // Less is a click.
        cursor: { drag: { dist: 5 }, y: false },
        height,
        hooks: {
          draw: [(one) => hatch(one, counted.current, text)],
          ready: [
            (one) =>
              one.over.addEventListener("click", () => {
                if (typeof one.cursor.idx === "number") opened.current?.(one.cursor.idx);
              }),
          ],
          setCursor: [({ cursor: { idx, left = -1 } }) => setHover(isOn(idx, left))],
          setScale: [(one, axisName) => axisName === "x" && setIsPart(showsPart(one))],
        },
        legend: { live: false, show: kinds.length > 1 },
        scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
        series: [
          {},
          ...kinds.map(([color, name]) => ({
            fill: bars ? themed(color) : null,
            label: name,
            ...(bars ? { paths: uPlot.paths.bars?.({ size: [0.8, 40] }) } : {}),
            points: { show: false },
            stroke: themed(color),
            width: bars ? 0 : 2,
          })),
        ] as uPlot.Series[],
        width: element.clientWidth || 300,
      },
      drawn.current,
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ height, width: element.clientWidth }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
      setIsPart(false);
      setHover(undefined);
    };
  }, [bars, height, shape, zone]);

  const stamp = JSON.stringify([data, countedSteps]);
  useEffect(() => {
    const shown = plot.current;
    if (!shown) return;
    const { max = 0, min = 0 } = shown.scales.x ?? {};
    const [first = 0] = drawn.current[0];
    const isKept = showsPart(shown) && min <= (drawn.current[0].at(-1) ?? 0) && max >= first;
    shown.setData(drawn.current, !isKept);
    // The part that was chosen stays, as long as there is something of it.
    if (isKept) shown.setScale("x", { max, min });
  }, [stamp]);

  return (
    <>
      {isPart && (
        <Button mb={1} onClick={() => showAll(plot.current)} size="xs" variant="outline">
          {TEXT.showTheWholeChart}
        </Button>
      )}
      <Box aria-label={label} position="relative" role="img" width="100%">
        <Box
          aria-hidden="true"
          css={{ "& .u-legend": { fontSize: "12px" }, "& .u-over": { cursor: open ? "pointer" : undefined } }}
          ref={box}
          width="100%"
        />
        {hover && at[hover.step] !== undefined && (
          <Tooltip
            at={instant(new Date((at[hover.step] ?? 0) * 1000).toISOString(), zone)}
            isCounted={hover.step < countedSteps}
            left={hover.left}
            values={series.flatMap(({ label: name, values }) => {
              const value = values[hover.step] ?? 0;
              return value === 0 && series.length > 1 ? [] : [`${name}: ${count(value)}`];
            })}
          />
        )}
      </Box>
    </>
  );
}

const isOn = (step: number | null | undefined, left: number): Hover | undefined =>
  typeof step === "number" && left >= 0 ? { left, step } : undefined;

/** Whether a drag has left only a part of the chart to be seen. */
function showsPart({ data: [at], scales: { x } }: uPlot): boolean {
  return (x?.min ?? 0) > (at[0] ?? 0) || (x?.max ?? Infinity) < (at.at(-1) ?? 0);
}

const showAll = (plot: uPlot | null) => {
  const at = plot?.data[0] ?? [];
  plot?.setScale("x", { max: at.at(-1) ?? 0, min: at[0] ?? 0 });
};

const AXIS_WIDTH = 56;

/** What a step holds, beside the mouse. */
function Tooltip({
  at,
  isCounted,
  left,
  values,
}: {
  at: string;
  isCounted: boolean;
  left: number;
  values: string[];
}) {
  return (
    <Box
      aria-hidden="true"
      bg="bg.panel"
      borderColor="border"
      borderRadius="sm"
      borderWidth="1px"
      boxShadow="sm"
      data-part="tooltip"
      fontSize="xs"
      // Beyond the middle it would not fit at the right.
      left={`${AXIS_WIDTH + left}px`}
      p={2}
      pointerEvents="none"
      position="absolute"
      top={2}
      transform={left > 240 ? "translateX(calc(-100% - 10px))" : "translateX(10px)"}
      whiteSpace="nowrap"
      zIndex="popover"
    >
      <Text fontWeight="bold">{at}</Text>
      {values.map((one) => (
        <Text key={one}>{one}</Text>
      ))}
      {!isCounted && <Text>{TEXT.thereMayBeMore}</Text>}
    </Box>
  );
}

/** Oblique lines over the steps from this one on. */
function hatch(plot: uPlot, from: number, color: string): void {
  const { ctx } = plot;
  const at = plot.data[0];
  if (from >= at.length) return;
  const { height, left, top, width } = plot.bbox;
  // A bar stands on both sides of its instant.
  const start = from === 0 ? left : plot.valToPos(((at[from - 1] ?? 0) + (at[from] ?? 0)) / 2, "x", true);
  ctx.save();
  ctx.beginPath();
  ctx.rect(start, top, left + width - start, height);
  ctx.clip();
  ctx.globalAlpha = 0.35;
  ctx.strokeStyle = color;
  ctx.beginPath();
  const apart = 8 * devicePixelRatio;
  for (let x = left - height; x < left + width; x += apart) {
    ctx.moveTo(x, top + height);
    ctx.lineTo(x + height, top);
  }
  ctx.stroke();
  ctx.restore();
}

/** Each series stacked on those after it, so that the first is drawn first and the others over it. */
function stacked(series: Series[]): number[][] {
  const sums: number[][] = [];
  for (const one of [...series].reverse()) {
    const below = sums[0];
    sums.unshift(one.values.map((value, index) => (value ?? 0) + (below?.[index] ?? 0)));
  }
  return sums;
}
