import { Box, Flex, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { Schemas } from "../api";
import { span } from "../format";
import { GroupLink, MessageLink } from "../links";
import { STATES } from "../states";
import { type Line, type Stretch, storyOf } from "../story";
import { TEXT } from "../texts";

/** What became of a message: for each group a sentence, what can be done now, and a lane on one time axis. */
export function Story({
  actionsOf,
  one,
}: {
  actionsOf: (line: Line) => ReactNode;
  one: Schemas["OneMessage"];
}) {
  const lines = storyOf(one);
  const instants = lines.flatMap((line) => line.stretches.flatMap(({ from, to }) => [from, to]));
  const from = Math.min(Date.parse(one.born_at), ...instants);
  const to = Math.max(from + 1, ...instants);
  const now = Date.parse(one.now_at);
  return (
    <Box aria-label={TEXT.story} as="ul" listStyleType="none" mb={4}>
      {lines.map((line) => (
        <Box as="li" key={line.group ?? ""} mb={3}>
          <Flex align="center" columnGap={3} mb={1} rowGap={1} wrap="wrap">
            <Text css={{ "& a": { textDecoration: "underline" }, overflowWrap: "anywhere" }}>
              {line.group !== null && (
                <>
                  <GroupLink group={line.group} topic={one.topic} />
                  {": "}
                </>
              )}
              {line.sentence}
              {line.heir !== undefined && (
                <>
                  {" "}
                  <MessageLink id={line.heir} />
                </>
              )}
            </Text>
            {actionsOf(line)}
          </Flex>
          <Lane from={from} now={now} stretches={line.stretches} to={to} />
        </Box>
      ))}
    </Box>
  );
}

function Lane({ from, now, stretches, to }: { from: number; now: number; stretches: Stretch[]; to: number }) {
  const place = (at: number) => `${((at - from) / (to - from)) * 100}%`;
  const words = ({ from: begin, state, to: end }: Stretch) =>
    `${STATES[state]?.[0] ?? state}${end > begin ? ` ${span((end - begin) / 1000)}` : ""}`;
  return (
    <Box
      aria-label={stretches.map(words).join(", ")}
      bg="bg.muted"
      borderRadius="sm"
      height="10px"
      position="relative"
      role="img"
    >
      {stretches.map((stretch) => (
        <Box
          bg={`${STATES[stretch.state]?.[1] ?? "gray"}.solid`}
          borderRadius="sm"
          height="100%"
          key={`${stretch.state} ${stretch.from}`}
          // The end of the last one has a width, too.
          left={`min(${place(stretch.from)}, calc(100% - 4px))`}
          minWidth="4px"
          position="absolute"
          title={words(stretch)}
          width={`calc(${place(stretch.to)} - ${place(stretch.from)})`}
        />
      ))}
      {now > from && now < to && (
        <Box
          bg="fg"
          height="16px"
          left={place(now)}
          position="absolute"
          title={TEXT.now}
          top="-3px"
          width="2px"
        />
      )}
    </Box>
  );
}
