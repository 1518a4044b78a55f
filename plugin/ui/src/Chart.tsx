import { Box } from "@chakra-ui/react";
import { useEffect, useRef, useState } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useZone } from "./zone";

export type Series = { color: string; label: string; values: (number | null)[] };

type Props = {
  bars?: boolean;
  height?: number;
  label: string;
  /** Seconds since 1970. */
  at: number[];
  /** From this step on there may be more than the values say: the chart is hatched there. */
  countedSteps?: number;
  series: Series[];
};

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
export function Chart({ at, bars = false, countedSteps = at.length, height = 180, label, series }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const theme = useTheme();
  const zone = useZone();
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
  useEffect(() => {
    drawn.current = data;
    counted.current = countedSteps;
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
            size: 56,
            values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? `${tick}` : "")),
          },
        ],
        cursor: { y: false },
        height,
        hooks: { draw: [(one) => hatch(one, counted.current, text)] },
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
    };
  }, [bars, height, shape, zone]);

  useEffect(() => {
    plot.current?.setData(data);
  });

  return (
    <Box aria-label={label} role="img" width="100%">
      <Box aria-hidden="true" css={{ "& .u-legend": { fontSize: "12px" } }} ref={box} width="100%" />
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
