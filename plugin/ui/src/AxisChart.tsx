// Bars by topic on one time axis, with now as a line, what groups did before it as lines, and the burst in words.
import { Box, Flex, Text } from "@chakra-ui/react";
import { type PointerEvent, useEffect, useRef, useState } from "react";
import { type AxisData, type Burst, type Layer, beginOf, burstOf } from "./axis";
import { compact, count, shortened, timeOfDay } from "./format";
import { TEXT } from "./texts";
import { useZone, wallClock } from "./zone";

export type Line = { color: string; name: string; values: number[] };

const HEIGHT = 210;
const LEFT = 44;
const TOP = 24;
const BOTTOM = 24;
const PLOT = HEIGHT - TOP - BOTTOM;
const TICK_PIXELS = 90;
const MUTED = "var(--chakra-colors-fg-muted)";
/** The distances of ticks, in seconds. */
const TICKS_SECONDS = [5, 15, 30, 60, 300, 600, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 432_000];

/** The smallest round number that is at least this. */
function roundAbove(value: number): number {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, value)));
  return [1, 2, 3, 4, 6, 8, 10].map((one) => one * power).find((one) => one >= value) ?? 10 * power;
}

/** Round instants by the clock of the zone, far enough apart for their words. */
function ticksOf(axis: AxisData, zone: string, width: number): number[] {
  const begin = beginOf(axis, 0);
  const end = beginOf(axis, axis.steps);
  const least = ((end - begin) / Math.max(1, width)) * TICK_PIXELS;
  const apart =
    1000 * (TICKS_SECONDS.find((one) => one * 1000 >= least) ?? Math.ceil(least / 86_400_000) * 86_400);
  const offset = Date.parse(`${wallClock(new Date(begin), zone)}Z`) - begin;
  const ticks: number[] = [];
  for (let at = Math.ceil((begin + offset) / apart) * apart - offset; at < end; at += apart) ticks.push(at);
  return ticks;
}

/** The width of an element, whose chart is drawn again for another width. */
function useWidth() {
  const element = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(900);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(200, entry?.contentRect.width ?? 0)));
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width] as const;
}

/** The step that the pointer is on. */
function stepAt({ target }: PointerEvent): number | undefined {
  const step = target instanceof Element ? target.getAttribute("data-step") : null;
  return step === null ? undefined : Number(step);
}

type Props = {
  axis: AxisData;
  label: string;
  layers: Layer[];
  lines: Line[];
  nowAt: string;
  /** A click leads to the messages of a step, a drag to a part of the axis. */
  open: (step: number) => void;
  zoom: (from: number, to: number) => void;
};

export function AxisChart({ axis, label, layers, lines, nowAt, open, zoom }: Props) {
  const [element, width] = useWidth();
  const [hover, setHover] = useState<number>();
  const [pressed, setPressed] = useState<number>();
  const zone = useZone();
  const step = (width - LEFT) / axis.steps;
  const x = (place: number) => LEFT + place * step;
  const totals = Array.from({ length: axis.steps }, (_, one) =>
    layers.reduce((sum, { values }) => sum + (values[one] ?? 0), 0),
  );
  const most = roundAbove(Math.max(1, ...totals, ...lines.flatMap((one) => one.values)));
  const leave = () => {
    setHover(undefined);
    setPressed(undefined);
  };
  const drop = (event: PointerEvent) => {
    const to = stepAt(event);
    if (pressed !== undefined && to !== undefined) {
      if (to === pressed) open(to);
      else zoom(pressed, to);
    }
    setPressed(undefined);
  };
  return (
    <Box
      aria-label={label}
      css={{ "& text": { fontSize: "12px" }, touchAction: "pan-y", userSelect: "none" }}
      cursor="pointer"
      onPointerCancel={leave}
      onPointerDown={(event) => setPressed(event.button === 0 ? stepAt(event) : undefined)}
      onPointerLeave={leave}
      onPointerMove={(event) => setHover(stepAt(event))}
      onPointerUp={drop}
      position="relative"
      ref={element}
      role="img"
      width="100%"
    >
      <svg aria-hidden="true" height={HEIGHT} viewBox={`0 0 ${width} ${HEIGHT}`} width="100%">
        <Grid axis={axis} most={most} nowAt={nowAt} width={width} zone={zone} />
        {layers.map((layer, index) => (
          <Bars below={layers.slice(0, index)} key={layer.name} layer={layer} most={most} step={step} x={x} />
        ))}
        {lines.map((line) => (
          <polyline
            data-line={line.name}
            fill="none"
            key={line.name}
            points={line.values.map((one, at) => `${x(at + 0.5)},${TOP + PLOT * (1 - one / most)}`).join(" ")}
            stroke={line.color}
            strokeWidth={2}
          />
        ))}
        <BurstLabel burst={burstOf(axis)} step={axis.step_seconds} width={width} x={x} zone={zone} />
        {pressed !== undefined && hover !== undefined && pressed !== hover && (
          <rect
            fill={MUTED}
            height={PLOT}
            opacity={0.25}
            width={(Math.abs(pressed - hover) + 1) * step}
            x={x(Math.min(pressed, hover))}
            y={TOP}
          />
        )}
        {totals.map((_, one) => (
          <rect
            data-step={one}
            fill={one === hover ? MUTED : "transparent"}
            fillOpacity={0.15}
            height={PLOT}
            key={beginOf(axis, one)}
            width={step}
            x={x(one)}
            y={TOP}
          />
        ))}
      </svg>
      {hover !== undefined && (
        <Tooltip
          axis={axis}
          layers={layers}
          left={x(hover)}
          lines={lines}
          step={hover}
          width={width}
          zone={zone}
        />
      )}
    </Box>
  );
}

function Grid({
  axis,
  most,
  nowAt,
  width,
  zone,
}: {
  axis: AxisData;
  most: number;
  nowAt: string;
  width: number;
  zone: string;
}) {
  const begin = beginOf(axis, 0);
  const end = beginOf(axis, axis.steps);
  const x = (at: number) => LEFT + ((at - begin) / (end - begin)) * (width - LEFT);
  const now = Date.parse(nowAt);
  const hasNow = now >= begin && now < end;
  const ticks = ticksOf(axis, zone, width - LEFT).filter(
    (at) => x(at) < width - 24 && !(hasNow && Math.abs(x(at) - x(now)) < TICK_PIXELS / 2),
  );
  return (
    <g fill={MUTED}>
      {[0, most / 2, most].filter(Number.isInteger).map((value) => (
        <g key={value}>
          <line
            stroke="var(--chakra-colors-border)"
            x1={LEFT}
            x2={width}
            y1={TOP + PLOT * (1 - value / most)}
            y2={TOP + PLOT * (1 - value / most)}
          />
          <text textAnchor="end" x={LEFT - 6} y={TOP + PLOT * (1 - value / most) + 4}>
            {compact(value)}
          </text>
        </g>
      ))}
      {ticks.map((at) => (
        <text key={at} textAnchor="middle" x={x(at)} y={HEIGHT - 6}>
          {timeOfDay(new Date(at).toISOString(), zone, axis.step_seconds)}
        </text>
      ))}
      {hasNow && (
        <g>
          <line stroke={MUTED} strokeDasharray="4 3" x1={x(now)} x2={x(now)} y1={TOP} y2={TOP + PLOT + 6} />
          <text fontWeight="bold" textAnchor="middle" x={x(now)} y={HEIGHT - 4}>
            {TEXT.now}
          </text>
        </g>
      )}
    </g>
  );
}

/** The bars of a topic, on those below it; a line parts them, and an estimate is paler. */
function Bars({
  below,
  layer,
  most,
  step,
  x,
}: {
  below: Layer[];
  layer: Layer;
  most: number;
  step: number;
  x: (place: number) => number;
}) {
  return layer.values.map((value, place) => {
    if (value === 0) return null;
    const high = Math.max(1, (value / most) * PLOT);
    const under = below.reduce((sum, { values }) => sum + ((values[place] ?? 0) / most) * PLOT, 0);
    return (
      <rect
        data-topic={layer.name}
        fill={layer.color}
        height={high}
        key={x(place)}
        opacity={layer.isExact[place] ? 1 : 0.6}
        stroke="var(--chakra-colors-bg)"
        strokeWidth={step > 4 && high > 3 ? 0.75 : 0}
        width={Math.max(1, step * 0.85)}
        x={x(place) + step * 0.075}
        y={TOP + PLOT - under - high}
      />
    );
  });
}

function BurstLabel({
  burst,
  step,
  width,
  x,
  zone,
}: {
  burst: Burst | undefined;
  step: number;
  width: number;
  x: (place: number) => number;
  zone: string;
}) {
  if (!burst) return null;
  const at = x(burst.step + 0.5);
  const anchor = at < width / 3 ? "start" : at > (width * 2) / 3 ? "end" : "middle";
  return (
    <text
      fill="var(--chakra-colors-fg)"

      fontWeight="bold"
      textAnchor={anchor}
      x={at}
      y={TOP - 9}
    >
      {TEXT.burst(
        count(burst.messages, burst.exact),
        timeOfDay(burst.at, zone, step),
        shortened(burst.topic, 30),
      )}
    </text>
  );
}

/** What a step holds, beside the pointer. */
function Tooltip({
  axis,
  layers,
  left,
  lines,
  step,
  width,
  zone,
}: {
  axis: AxisData;
  layers: Layer[];
  left: number;
  lines: Line[];
  step: number;
  width: number;
  zone: string;
}) {
  const [begin, end] = [step, step + 1].map((one) =>
    wallClock(new Date(beginOf(axis, one)), zone)
      .replace("T", " ")
      .slice(0, -4),
  );
  const inStep = layers.filter(({ values }) => (values[step] ?? 0) > 0);
  const total = inStep.reduce((sum, { values }) => sum + (values[step] ?? 0), 0);
  const isExact = inStep.every((one) => one.isExact[step]);
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
      left={`${left}px`}
      maxW="20rem"
      p={2}
      pointerEvents="none"
      position="absolute"
      top={8}
      transform={left > width / 2 ? "translateX(calc(-100% - 10px))" : "translateX(20px)"}
      zIndex="popover"
    >
      <Text fontWeight="bold">{TEXT.fromTo(begin ?? "", end?.slice(11) ?? "")}</Text>
      {inStep.map((one) => (
        <Text key={one.name} truncate>
          {one.name}: {count(one.values[step] ?? 0, one.isExact[step])}
        </Text>
      ))}
      <Text>{TEXT.inAll(count(total, isExact))}</Text>
      {step <= axis.past_steps &&
        lines.map((one) => (
          <Text key={one.name}>
            {one.name}: {count(one.values[step] ?? 0)}
          </Text>
        ))}
    </Box>
  );
}

/** What the colours mean. */
export const Legend = ({ layers, lines }: { layers: Layer[]; lines: Line[] }) => (
  <Flex fontSize="xs" gap={3} minW={0} wrap="wrap">
    {[...layers, ...lines].map((one) => (
      <Flex align="center" gap={1} key={one.name} minW={0}>
        <Box
          aria-hidden="true"
          flexShrink={0}
          height={"values" in one && lines.includes(one) ? "2px" : "10px"}
          style={{ background: one.color }}
          width="10px"
        />
        <Text as="span" css={{ overflowWrap: "anywhere" }}>
          {one.name}
        </Text>
      </Flex>
    ))}
  </Flex>
);
