// What the chart of the time axis consists of: its grid, the bars of topics, lines, and the burst in words.
import { Fragment } from "react";
import { type AxisData, type Layer, burstOf } from "./axis";
import { HEIGHT, LEFT, PLOT, type Scale, TICK_PIXELS, TOP, ticksOf } from "./axisScale";
import { compact, count, shortened, timeOfDay } from "./format";
import { TEXT } from "./texts";

export type Line = { color: string; name: string; values: number[] };

export const MUTED = "var(--chakra-colors-fg-muted)";

type Drawn = { axis: AxisData; scale: Scale; zone: string };

export function Grid({ axis, nowAt, scale, zone }: Drawn & { nowAt: string }) {
  const { begin, end, most, width, xAt, y } = scale;
  const now = Date.parse(nowAt);
  const hasNow = now >= begin && now < end;
  const ticks = ticksOf(scale, zone).filter(
    (at) => xAt(at) < width - 24 && !(hasNow && Math.abs(xAt(at) - xAt(now)) < TICK_PIXELS / 2),
  );
  return (
    <g fill={MUTED}>
      {[0, most / 2, most].filter(Number.isInteger).map((value) => (
        <Fragment key={value}>
          <line stroke="var(--chakra-colors-border)" x1={LEFT} x2={width} y1={y(value)} y2={y(value)} />
          <text textAnchor="end" x={LEFT - 6} y={y(value) + 4}>
            {compact(value)}
          </text>
        </Fragment>
      ))}
      {ticks.map((at) => (
        <text key={at} textAnchor="middle" x={xAt(at)} y={HEIGHT - 6}>
          {timeOfDay(new Date(at).toISOString(), zone, axis.step_seconds)}
        </text>
      ))}
      {hasNow && (
        <>
          <line
            stroke={MUTED}
            strokeDasharray="4 3"
            x1={xAt(now)}
            x2={xAt(now)}
            y1={TOP}
            y2={TOP + PLOT + 6}
          />
          <text fontWeight="bold" textAnchor="middle" x={xAt(now)} y={HEIGHT - 4}>
            {TEXT.now}
          </text>
        </>
      )}
    </g>
  );
}

/** The bars of a topic, on those below it; a line parts them, and an estimate is paler. */
export function Bars({ below, layer, scale }: { below: Layer[]; layer: Layer; scale: Scale }) {
  const { heightOf, stepWidth, x } = scale;
  return layer.values.map((value, step) => {
    if (value === 0) return null;
    const height = Math.max(1, heightOf(value));
    const under = below.reduce((sum, { values }) => sum + (values[step] ?? 0), 0);
    return (
      <rect
        data-topic={layer.name}
        fill={layer.color}
        height={height}
        key={x(step)}
        opacity={layer.isExact[step] ? 1 : 0.6}
        stroke="var(--chakra-colors-bg)"
        strokeWidth={stepWidth > 4 && height > 3 ? 0.75 : 0}
        width={Math.max(1, stepWidth * 0.85)}
        x={x(step) + stepWidth * 0.075}
        y={scale.y(under) - height}
      />
    );
  });
}

export const ThroughSteps = ({ line, scale: { x, y } }: { line: Line; scale: Scale }) => (
  <polyline
    data-line={line.name}
    fill="none"
    points={line.values.map((value, step) => `${x(step + 0.5)},${y(value)}`).join(" ")}
    stroke={line.color}
    strokeWidth={2}
  />
);

/** Steps over their whole height. */
export const WholeSteps = ({
  first,
  last = first,
  scale: { stepWidth, x },
  ...rest
}: {
  "data-step"?: number;
  fill: string;
  first: number;
  last?: number;
  opacity: number;
  scale: Scale;
}) => <rect height={PLOT} width={(last - first + 1) * stepWidth} x={x(first)} y={TOP} {...rest} />;

export function BurstLabel({ axis, scale: { width, x }, zone }: Drawn) {
  const burst = burstOf(axis);
  if (!burst) return null;
  const at = x(burst.step + 0.5);
  const anchor = at < width / 3 ? "start" : at > (width * 2) / 3 ? "end" : "middle";
  return (
    <text fill="var(--chakra-colors-fg)" fontWeight="bold" textAnchor={anchor} x={at} y={TOP - 9}>
      {TEXT.burst(
        count(burst.messages, burst.exact),
        timeOfDay(burst.at, zone, axis.step_seconds),
        shortened(burst.topic, 30),
      )}
    </text>
  );
}
