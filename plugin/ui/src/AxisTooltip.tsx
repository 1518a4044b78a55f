// What a step of the time axis holds, beside the pointer, and what the colours mean.
import { Box, Flex, Text } from "@chakra-ui/react";
import { type AxisData, type Layer, beginOf } from "./axis";
import type { Line } from "./AxisDrawing";
import type { Scale } from "./axisScale";
import { count } from "./format";
import { TEXT } from "./texts";
import { wallClock } from "./zone";

export function Tooltip({
  axis,
  layers,
  lines,
  scale,
  step,
  zone,
}: {
  axis: AxisData;
  layers: Layer[];
  lines: Line[];
  scale: Scale;
  step: number;
  zone: string;
}) {
  const left = scale.x(step);
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
      transform={left > scale.width / 2 ? "translateX(calc(-100% - 10px))" : "translateX(20px)"}
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
