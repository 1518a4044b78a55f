// The state of the broker in six numbers. A wrong number is red, and leads to the cure.
import { Box, Grid, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import type { Schemas } from "./api";
import { sidesOf } from "./axis";
import { count, countOf, many, span } from "./format";
import { Age } from "./Answered";
import { GroupLink, PageLink, TopicLink } from "./links";
import { LATE_SECONDS } from "./problems";
import { EVERY_SECONDS, useBroker } from "./queries";
import { Sparkline } from "./Sparkline";
import { TEXT } from "./texts";
import { axisIn } from "./views/TimeAxis";

/** From here on, a number says how old it is. */
const OLD_SECONDS = 10;
const LATENESS_SECONDS = 60;
/** Dark enough, or light enough, for a link in it to be read. */
const WRONG = { _dark: "red.300", base: "red.700" };
/** What stands for a number that is not there yet. */
const PENDING = "…";

const secondsSince = (at: string, nowAt: string) => (Date.parse(nowAt) - Date.parse(at)) / 1000;

export function Tiles({ broker }: { broker: string }) {
  const { data: pulse, error, readAt } = useBroker(broker, "pulse", {}, EVERY_SECONDS);
  // The broker does not answer, and the verdict says so: no tile would get its number.
  if (!pulse && error) return null;
  const age = pulse && <Age readAt={readAt} />;
  return (
    <Grid
      aria-label={TEXT.stateOfTheBroker}
      as="section"
      // Among words, a link is told by more than its color.
      css={{ "& a": { textDecoration: "underline" } }}
      gap={3}
      mb={4}
      role="region"
      templateColumns={{
        base: "repeat(2, minmax(0, 1fr))",
        md: "repeat(3, minmax(0, 1fr))",
        xl: "repeat(6, minmax(0, 1fr))",
      }}
    >
      <Late age={age} broker={broker} pulse={pulse} />
      <Overdue age={age} pulse={pulse} />
      <NextHour broker={broker} />
      <Tile age={age} label={TEXT.waiting}>
        {pulse ? count(pulse.waiting, pulse.waiting_is_exact) : PENDING}
      </Tile>
      <OldestReady pulse={pulse} />
      <Dead pulse={pulse} />
    </Grid>
  );
}

function Tile({
  age,
  children,
  isWrong = false,
  label,
  note,
  trend,
}: {
  age?: ReactNode;
  children: ReactNode;
  isWrong?: boolean;
  label: string;
  /** Below the number: whose it is, and since when. */
  note?: ReactNode;
  trend?: ReactNode;
}) {
  return (
    <Box
      aria-label={label}
      borderColor="border"
      borderRadius="md"
      borderWidth="1px"
      minW={0}
      p={3}
      role="group"
    >
      <Text color="fg.muted" fontSize="xs">
        {label}
      </Text>
      <Text color={isWrong ? WRONG : undefined} css={{ "& a": { color: "inherit" } }} fontSize="xl">
        {children}
      </Text>
      <Text as="div" color="fg.muted" css={{ overflowWrap: "anywhere" }} fontSize="xs">
        {note} {age}
      </Text>
      {trend}
    </Box>
  );
}

type Known = { pulse: Schemas["Pulse"] | undefined };

/** The worst topic in each hour of a day. */
export const worstByHour = ({ hours, topics }: Schemas["DayLateness"]) =>
  Array.from({ length: hours }, (_, hour) => {
    const inHour = topics.flatMap(({ p99_seconds }) => p99_seconds[hour] ?? []);
    return inHour.length === 0 ? null : Math.max(...inHour);
  });

function Late({ age, broker, pulse }: Known & { age: ReactNode; broker: string }) {
  const { data: day } = useBroker(broker, "lateness", {}, LATENESS_SECONDS);
  const late = pulse?.late;
  return (
    <Tile
      age={age}
      isWrong={late != null && late.p99_seconds > LATE_SECONDS}
      label={TEXT.latenessP99}
      note={
        late && (
          <>
            {TEXT.p50(span(late.p50_seconds))} <TopicLink topic={late.topic} />
            {!pulse.late_has_all && TEXT.notOfAllTopics}
          </>
        )
      }
      trend={
        day &&
        day.topics.length > 0 && (
          <Sparkline byHour={worstByHour(day)} fromAt={day.from_at} label={TEXT.worstByHour} />
        )
      }
    >
      {late ? span(late.p99_seconds) : pulse ? TEXT.nothingReleased : PENDING}
    </Tile>
  );
}

function Overdue({ age, pulse }: Known & { age: ReactNode }) {
  const [first] = pulse?.overdue ?? [];
  if (!pulse || !first)
    return (
      <Tile age={age} label={TEXT.overdue}>
        {pulse ? "0" : PENDING}
      </Tile>
    );
  const { now_at, overdue, overdue_has_more, overdue_messages: counted } = pulse;
  const sum = countOf(
    counted.reduce((all, one) => all + one.messages, 0),
    counted.every((one) => one.exact),
    counted.length === overdue.length,
  );
  const topics = many(overdue.length, TEXT.nounTopic);
  return (
    <Tile
      age={age}
      isWrong
      label={TEXT.overdue}
      note={
        <>
          {overdue.length > 1 ? (overdue_has_more ? TEXT.atLeastOf(topics) : topics) : first.topic}{" "}
          {TEXT.sinceASpan(span(secondsSince(first.due_at, now_at)))}
        </>
      }
    >
      <PageLink to={{ topic: overdue.length > 1 ? null : first.topic }} view="messages">
        {sum}
      </PageLink>
    </Tile>
  );
}

/** The right half of the axis of an hour, which is shown first. */
function NextHour({ broker }: { broker: string }) {
  const { data: view, readAt } = useBroker(
    broker,
    "overview",
    axisIn(() => ""),
    EVERY_SECONDS,
  );
  if (!view) return <Tile label={TEXT.dueInTheNextHour}>{PENDING}</Tile>;
  const { exact, messages } = sidesOf(view.axis).due;
  return (
    <Tile age={<Age readAt={readAt} />} label={TEXT.dueInTheNextHour}>
      {countOf(messages, exact, view.axis.complete)}
    </Tile>
  );
}

/** How old the numbers of the groups are, once that matters. */
function groupsAge({ groups_at, now_at }: Schemas["Pulse"]): string | undefined {
  const seconds = groups_at === null ? 0 : secondsSince(groups_at, now_at);
  return seconds > OLD_SECONDS ? TEXT.ago(span(seconds)) : undefined;
}

function OldestReady({ pulse }: Known) {
  const lag = pulse?.lag;
  return (
    <Tile
      age={pulse && groupsAge(pulse)}
      label={TEXT.oldestReadyMessage}
      note={lag && <GroupLink group={lag.group} topic={lag.topic} />}
    >
      {!pulse
        ? PENDING
        : lag?.oldest_deliver_at
          ? span(secondsSince(lag.oldest_deliver_at, pulse.now_at))
          : pulse.groups_at === null
            ? TEXT.notReadYet
            : TEXT.none}
    </Tile>
  );
}

function Dead({ pulse }: Known) {
  const dead = pulse?.dead ?? null;
  // There may have been no time for the groups of some topics.
  const isComplete = pulse?.groups_to === null;
  return (
    <Tile age={pulse && groupsAge(pulse)} isWrong={dead !== null && dead > 0} label={TEXT.deadLetters}>
      {!pulse ? (
        PENDING
      ) : dead === null ? (
        TEXT.notReadYet
      ) : dead > 0 ? (
        <PageLink view="dead">{countOf(dead, true, isComplete)}</PageLink>
      ) : isComplete ? (
        "0"
      ) : (
        TEXT.notReadYet
      )}
    </Tile>
  );
}
