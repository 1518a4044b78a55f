// The chart of what is due: from now on or from any instant, each step with a way to its messages.
import { Button, Flex, Text } from "@chakra-ui/react";
import { useState } from "react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { Chart, type Series } from "../Chart";
import { count, instant, span } from "../format";
import { Filters } from "../Filters";
import { Age, Filter, InstantFilter, PageLink, Section, When } from "../parts";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { isInstant, useZone } from "../zone";
import { TEXT } from "../texts";

const SPANS: Record<string, [length: string, step: string]> = {
  days: [TEXT.threeDays, TEXT.nounHour],
  hour: [TEXT.nounHour, TEXT.nounMinute],
  minute: [TEXT.nounMinute, TEXT.nounSecond],
};
const COLORS = ["blue-500", "green-500", "orange-500", "purple-500", "teal-500"];

/** The instant that the address names as the beginning of the chart; the empty string for now. */
export const beginningOf = (said: string) => (isInstant(said) ? said : "");

/** The largest topics singly, all others together. */
export function byTopic(due: Schemas["DueHistogram"]): Series[] {
  const sums = new Map<string, number>();
  for (const one of due.due) sums.set(one.topic, (sums.get(one.topic) ?? 0) + one.messages);
  const largest = [...sums].sort((one, other) => other[1] - one[1]).map(([topic]) => topic);
  const shown = largest.slice(0, largest.length > COLORS.length ? COLORS.length - 1 : COLORS.length);
  const names =
    largest.length > shown.length ? [...shown, TEXT.others(largest.length - shown.length)] : shown;
  const series = names.map((label, index) => ({
    color: COLORS[index] ?? "gray-500",
    label,
    values: new Array<number>(due.steps).fill(0),
  }));
  for (const one of due.due) {
    const place = shown.indexOf(one.topic);
    const values = series[place < 0 ? series.length - 1 : place]?.values;
    if (values && one.step >= 0 && one.step < due.steps)
      values[one.step] = (values[one.step] ?? 0) + one.messages;
  }
  return series;
}

/** The instants at which the steps of a chart begin, in seconds since 1970. */
export const instants = (due: Schemas["DueHistogram"]) =>
  Array.from({ length: due.steps }, (_, step) => Date.parse(due.from_at) / 1000 + step * due.step_seconds);

function total(due: Schemas["DueHistogram"]): string {
  const messages = due.due.reduce((sum, one) => sum + one.messages, 0);
  const words = count(
    messages,
    due.due.every((one) => one.exact),
  );
  return due.counted_steps < due.steps ? TEXT.atLeastOf(words) : words;
}

/** What a hatched chart means, below it. */
export function Uncounted({ due, topic }: { due: Schemas["DueHistogram"]; topic: string }) {
  const zone = useZone();
  if (due.counted_steps >= due.steps) return null;
  const from = new Date(Date.parse(due.from_at) + due.counted_steps * due.step_seconds * 1000);
  return (
    <Text color="fg.muted" fontSize="sm">
      {topic === "" ? TEXT.hatchedAllTopics : TEXT.hatchedFromAnInstant(instant(from.toISOString(), zone))}
    </Text>
  );
}

type Step = { at: string; exact: boolean; messages: number; topic: string; until: string };

/** The steps that hold messages, by topic. */
const stepsOf = (due: Schemas["DueHistogram"]): Step[] =>
  due.due.map((one) => ({ ...one, ...boundsOf(due, one.step) }));

function boundsOf(due: Schemas["DueHistogram"], step: number) {
  const at = Date.parse(due.from_at) + step * due.step_seconds * 1000;
  return { at: new Date(at).toISOString(), until: new Date(at + due.step_seconds * 1000).toISOString() };
}

/** The filter of the messages of a step; what is past may be released already. */
const messagesOf = (bounds: { at: string; until: string }, topic: string, nowAt: string) => ({
  from: bounds.at,
  state: bounds.at < nowAt ? "all" : null,
  topic: topic || null,
  until: bounds.until,
});

const column = columnsOf<Step>();

const stepColumns = (nowAt: string) => [
  column.accessor("at", {
    cell: ({ row: { original: one } }) => (
      <PageLink to={messagesOf(one, one.topic, nowAt)} view="messages">
        <When at={one.at} />
      </PageLink>
    ),
    header: TEXT.from,
  }),
  column.accessor("topic", { header: TEXT.topic }),
  column.accessor("messages", {
    cell: ({ row: { original: one } }) => count(one.messages, one.exact),
    header: TEXT.messages,
    ...NUMBER,
  }),
];

export function DueSteps({
  everySeconds,
  readAt,
  view,
}: {
  everySeconds: number;
  readAt: number;
  view: Schemas["Overview"];
}) {
  const address = useAddress();
  const zone = useZone();
  const [isList, setIsList] = useState(false);
  const from = beginningOf(address.of("from"));
  const topic = address.of("topic");
  const within = address.of("span") || "hour";
  const words = (name: string) => {
    const [length, step] = SPANS[name] ?? [name, TEXT.nounStep];
    return from === "" ? TEXT.nextBy(length, step) : TEXT.spanByStep(length, step);
  };
  const where = `${words(within)}${from && TEXT.fromOn(instant(from, zone))}`;
  return (
    <Section
      extra={
        <Flex align="end" gap={2} wrap="wrap">
          <Filters margin={0} names={["topic", "from"]}>
            <Filter label={TEXT.topic} name="topic" placeholder={TEXT.all} width="10rem" />
            <InstantFilter label={TEXT.fromEmptyNow} name="from" />
          </Filters>
          {Object.keys(SPANS).map((name) => (
            <Button
              aria-pressed={name === within}
              key={name}
              onClick={() => address.set({ span: name })}
              size="xs"
              variant={name === within ? "solid" : "outline"}
            >
              {words(name)}
            </Button>
          ))}
        </Flex>
      }
      title={TEXT.dueInThe(total(view.due), where)}
    >
      <Chart
        at={instants(view.due)}
        bars
        countedSteps={view.due.counted_steps}
        label={TEXT.messagesDueInTheByTopic(where, total(view.due))}
        open={(step) => address.open("messages", messagesOf(boundsOf(view.due, step), topic, view.now_at))}
        series={byTopic(view.due)}
      />
      <Flex align="center" gap={3} mt={1} wrap="wrap">
        <Text color="fg.muted" fontSize="xs">
          {TEXT.aClickOnABarShows} <When at={view.now_at} /> <Age readAt={readAt} />
          {view.shared_seconds > everySeconds && TEXT.itIsComputedOnceInFor(span(view.shared_seconds))}
        </Text>
        <Button aria-expanded={isList} onClick={() => setIsList(!isList)} size="xs" variant="outline">
          {isList ? TEXT.hideTheList : TEXT.asAList}
        </Button>
      </Flex>
      <Uncounted due={view.due} topic={topic} />
      {isList && (
        <Rows
          columns={stepColumns(view.now_at)}
          empty={TEXT.nothingIsDueThen}
          keyOf={(one) => `${one.topic} ${one.at}`}
          label={TEXT.dueMessages}
          rows={stepsOf(view.due)}
          sorts
        />
      )}
    </Section>
  );
}
