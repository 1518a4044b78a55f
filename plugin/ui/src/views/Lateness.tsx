import { Button, Text } from "@chakra-ui/react";
import { useState } from "react";
import type { Schemas } from "../api";
import { away, span } from "../format";
import { Answered } from "../Answered";
import { TopicLink } from "../links";
import { Section, When } from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { Sparkline, hourOf } from "../Sparkline";
import { TEXT } from "../texts";

const EVERY_SECONDS = 60;
const FIRST = 10;

/** A topic with its newest releases and its last day; one of the two may be missing. */
type Late = Partial<Schemas["TopicLateness"]> & {
  by_hour: (number | null)[];
  topic: string;
  worst_at: string | undefined;
  worst_seconds: number | undefined;
};

/** The topics of the last day and of the last hour, the one that was released latest first. */
export function worstFirst(day: Schemas["DayLateness"], recent: Schemas["TopicLateness"][]): Late[] {
  const recently = new Map(recent.map((one) => [one.topic, one]));
  const rows = day.topics.map(({ p99_seconds: by_hour, topic }): Late => {
    const worst = Math.max(...by_hour.map((one) => one ?? 0));
    const { p50_seconds, p99_seconds, by_wheel, newest_at } = recently.get(topic) ?? {};
    return {
      ...(recently.has(topic) ? { by_wheel, newest_at, p50_seconds, p99_seconds } : {}),
      by_hour,
      topic,
      worst_at: hourOf(day.from_at, by_hour.indexOf(worst)),
      worst_seconds: worst,
    } as Late;
  });
  const known = new Set(rows.map((one) => one.topic));
  const others = recent
    .filter((one) => !known.has(one.topic))
    .map((one): Late => ({ ...one, by_hour: [], worst_at: undefined, worst_seconds: one.p99_seconds }));
  return [...rows, ...others].sort((one, other) => (other.worst_seconds ?? 0) - (one.worst_seconds ?? 0));
}

const late = columnsOf<Late>();

const lateColumns = (nowAt: string, fromAt: string) => [
  late.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  late.accessor("worst_seconds", {
    cell: ({ row: { original: one } }) => (one.worst_seconds === undefined ? "–" : span(one.worst_seconds)),
    header: TEXT.worstHoursP99,
    ...NUMBER,
  }),
  late.accessor("worst_at", {
    cell: ({ row: { original: one } }) => <When at={one.worst_at ?? null} />,
    header: TEXT.thatHour,
  }),
  late.display({
    cell: ({ row: { original: one } }) => (
      <Sparkline byHour={one.by_hour} fromAt={fromAt} label={TEXT.lateByHour} />
    ),
    header: TEXT.byHour,
    id: "by_hour",
  }),
  late.accessor("p50_seconds", {
    cell: ({ row: { original: one } }) => (one.p50_seconds === undefined ? "–" : span(one.p50_seconds)),
    header: TEXT.p50LastHour,
    ...NUMBER,
  }),
  late.accessor("p99_seconds", {
    cell: ({ row: { original: one } }) => (one.p99_seconds === undefined ? "–" : span(one.p99_seconds)),
    header: TEXT.p99LastHour,
    ...NUMBER,
  }),
  late.accessor("by_wheel", {
    cell: ({ row: { original: one } }) =>
      one.by_wheel === undefined ? "–" : one.by_wheel ? TEXT.byAWheel : TEXT.byReceivers,
    header: TEXT.releasedBy,
  }),
  late.accessor("newest_at", {
    cell: ({ row: { original: one } }) => (one.newest_at === undefined ? "–" : away(one.newest_at, nowAt)),
    header: TEXT.newest,
  }),
];

/** How late releases were: the ten worst topics of the last day, or all. */
export function Lateness({
  broker,
  topic,
  view,
}: {
  broker: string;
  topic: string;
  view: Schemas["Overview"];
}) {
  const [isAll, setIsAll] = useState(false);
  const answer = useBroker(broker, "lateness", {}, EVERY_SECONDS);
  return (
    <Section title={TEXT.latenessOfReleaseInTheLast}>
      <Answered answer={answer}>
        {(day) => {
          const rows = worstFirst(day, view.lateness).filter((one) => topic === "" || one.topic === topic);
          return (
            <>
              <Rows
                columns={lateColumns(view.now_at, day.from_at)}
                empty={TEXT.nothingWasReleasedInTheLast}
                keyOf={(one) => one.topic}
                label={TEXT.latenessOfReleaseByTopic}
                rows={isAll ? rows : rows.slice(0, FIRST)}
                sorts={isAll || rows.length <= FIRST}
              />
              {rows.length > FIRST && (
                <Button mt={3} onClick={() => setIsAll(!isAll)} size="xs" variant="outline">
                  {isAll ? TEXT.showTheWorst(FIRST) : TEXT.showAll(rows.length)}
                </Button>
              )}
              {day.looked_at_hours < day.hours && (
                <Text color="fg.muted" fontSize="sm" mt={2}>
                  {TEXT.thereWasTimeForTheLast(day.looked_at_hours)}
                </Text>
              )}
            </>
          );
        }}
      </Answered>
    </Section>
  );
}
