// Bars by topic on one time axis, with now as a line, what groups did before it as lines, and the burst in words.
import { Box } from "@chakra-ui/react";
import { useEffect, useRef, useState } from "react";
import { type AxisData, type Layer, beginOf } from "./axis";
import { Bars, BurstLabel, Grid, type Line, MUTED, ThroughSteps, WholeSteps } from "./AxisDrawing";
import { TOUCH, usePointing } from "./axisPointing";
import { HEIGHT, scaleOf } from "./axisScale";
import { Tooltip } from "./AxisTooltip";
import { useZone } from "./zone";

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
  const { handlers, hover, marked } = usePointing({ open, zoom });
  const zone = useZone();
  const steps = Array.from({ length: axis.steps }, (_, step) => step);
  const totals = steps.map((step) => layers.reduce((sum, { values }) => sum + (values[step] ?? 0), 0));
  const scale = scaleOf(axis, Math.max(...totals, ...lines.flatMap((one) => one.values)), width);
  return (
    <Box
      aria-label={label}
      css={{ "& text": { fontSize: "12px" }, ...TOUCH }}
      cursor="pointer"
      position="relative"
      ref={element}
      role="img"
      width="100%"
      {...handlers}
    >
      <svg aria-hidden="true" height={HEIGHT} viewBox={`0 0 ${width} ${HEIGHT}`} width="100%">
        <Grid axis={axis} nowAt={nowAt} scale={scale} zone={zone} />
        {layers.map((layer, index) => (
          <Bars below={layers.slice(0, index)} key={layer.name} layer={layer} scale={scale} />
        ))}
        {lines.map((line) => (
          <ThroughSteps key={line.name} line={line} scale={scale} />
        ))}
        <BurstLabel axis={axis} scale={scale} zone={zone} />
        {marked && (
          <WholeSteps fill={MUTED} first={marked[0]} last={marked[1]} opacity={0.25} scale={scale} />
        )}
        {steps.map((step) => (
          <WholeSteps
            data-step={step}
            fill={step === hover ? MUTED : "transparent"}
            first={step}
            key={beginOf(axis, step)}
            opacity={0.15}
            scale={scale}
          />
        ))}
      </svg>
      {hover !== undefined && (
        <Tooltip axis={axis} layers={layers} lines={lines} scale={scale} step={hover} zone={zone} />
      )}
    </Box>
  );
}
