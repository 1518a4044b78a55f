// One time axis with now in its middle: left released messages, right due messages, each step with a way to its messages.
import { Button, Flex, Text } from "@chakra-ui/react";
import { useState } from "react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { AxisChart } from "../AxisChart";
import type { Line } from "../AxisDrawing";
import { Legend } from "../AxisTooltip";
import { type Bounds, type Sum, boundsOf, layersOf, sidesOf } from "../axis";
import { count, countOf, instant, span } from "../format";
import { Filters } from "../Filters";
import { Age } from "../Answered";
import { Filter, InstantFilter } from "../filterFields";
import { PageLink, TopicLink } from "../links";
import { Section, When } from "../parts";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { isInstant, useZone } from "../zone";
import { TEXT } from "../texts";

const SPANS: Record<string, string> = {
  "15min": "15 min",
  "1h": "1 h",
  "24h": "24 h",
  "3d": "3 d",
  "30d": "30 d",
};
const FIRST_SPAN = "1h";

const instantIn = (said: string) => (isInstant(said) ? said : "");

/** What the address says of the axis, under the names that the API has. */
export const axisIn = (said: (name: string) => string) => ({
  from_at: instantIn(said("from")),
  span: said("span") || FIRST_SPAN,
  topic: said("topic"),
  until_at: instantIn(said("from")) && instantIn(said("until")),
});

/** The filter of messages that are due between two instants; before now, they may be released already. */
const messagesOf = ({ at, until }: Bounds, topic: string, nowAt: string) => ({
  from: at,
  state: at < nowAt ? "all" : null,
  topic: topic || null,
  until,
});

type Step = Bounds & Schemas["DueStep"];

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
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => one.topic && <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  column.accessor("messages", {
    cell: ({ row: { original: one } }) => count(one.messages, one.exact),
    header: TEXT.messages,
    ...NUMBER,
  }),
];

/** What groups did in each step until now. */
function linesOf({ axis, flow }: Schemas["Overview"]): Line[] {
  if (flow.length === 0) return [];
  const line = (name: string, color: string, of: (step: Schemas["FlowStep"]) => number): Line => {
    const values = new Array<number>(Math.min(axis.steps, axis.past_steps + 1)).fill(0);
    for (const one of flow) if (one.step < values.length) values[one.step] = of(one);
    return { color: `var(--chakra-colors-${color}-500)`, name, values };
  };
  return [
    line(TEXT.stateAcked, "green", (one) => one.acked),
    line(TEXT.failed, "red", (one) => one.failed),
  ].filter(({ values }) => values.some((one) => one > 0));
}

/** The numbers on both sides of now, in words. */
function numbersOf(axis: Schemas["Axis"]): string {
  const words = ({ exact, messages }: Sum) => countOf(messages, exact, axis.complete);
  const sides = sidesOf(axis);
  const released = axis.past_steps > 0 && TEXT.releasedSum(words(sides.released));
  const due = axis.past_steps < axis.steps && TEXT.dueSum(words(sides.due));
  return [released, due].filter(Boolean).join(" · ");
}

export function TimeAxis({
  everySeconds,
  readAt,
  view,
}: {
  everySeconds: number;
  readAt: number;
  view: Schemas["Overview"];
}) {
  const { axis, now_at } = view;
  const address = useAddress();
  const zone = useZone();
  const [isList, setIsList] = useState(false);
  const { from_at, span: within, topic } = axisIn(address.of);
  const layers = layersOf(axis, TEXT.others);
  const lines = linesOf(view);
  const whole = boundsOf(axis, 0, axis.steps - 1);
  const where = from_at
    ? TEXT.fromTo(instant(whole.at, zone), instant(whole.until, zone))
    : TEXT.beforeAndAfterNow(SPANS[within] ?? within);
  const title = `${numbersOf(axis)}, ${where}`;
  return (
    <Section
      extra={
        <Flex align="end" gap={2} wrap="wrap">
          <Filters margin={0} names={{ topic: TEXT.topic, from: TEXT.from }}>
            <Filter label={TEXT.topic} name="topic" placeholder={TEXT.all} width="10rem" />
            <InstantFilter label={TEXT.fromEmptyNow} name="from" />
          </Filters>
          {from_at && (
            <Button onClick={() => address.set({ from: null, until: null })} size="xs" variant="outline">
              {TEXT.backToNow}
            </Button>
          )}
          <Spans within={within} />
        </Flex>
      }
      title={title}
    >
      <AxisChart
        axis={axis}
        label={TEXT.messagesByTopicAndTime(title)}
        layers={layers}
        lines={lines}
        nowAt={now_at}
        open={(step) => address.open("messages", messagesOf(boundsOf(axis, step), topic, now_at))}
        zoom={(from, to) => {
          const { at, until } = boundsOf(axis, from, to);
          address.set({ from: at, until });
        }}
      />
      <Legend layers={layers} lines={lines} />
      <Flex align="center" gap={3} mt={2} wrap="wrap">
        <Text color="fg.muted" fontSize="xs">
          {TEXT.aClickOnABarShows} <When at={now_at} />
          {view.shared_seconds > everySeconds && TEXT.itIsComputedOnceInFor(span(view.shared_seconds))}{" "}
          <Age readAt={readAt} />
        </Text>
        <Button aria-expanded={isList} onClick={() => setIsList(!isList)} size="xs" variant="outline">
          {isList ? TEXT.hideTheList : TEXT.asAList}
        </Button>
      </Flex>
      <Limits axis={axis} hasLines={lines.length > 0} topic={topic} />
      {isList && (
        <Rows
          columns={stepColumns(now_at)}
          empty={TEXT.nothingIsDueThen}
          keyOf={(one) => `${one.topic} ${one.at}`}
          label={TEXT.messagesByTime}
          rows={axis.due.map((one) => ({ ...one, ...boundsOf(axis, one.step) }))}
          sorts
        />
      )}
    </Section>
  );
}

/** The buttons for how much of the axis is shown, in one line in the narrowest window. */
function Spans({ within }: { within: string }) {
  const address = useAddress();
  return (
    <Flex flexShrink={0} gap={1}>
      {Object.entries(SPANS).map(([name, words]) => (
        <Button
          aria-pressed={name === within}
          key={name}
          onClick={() => address.set({ span: name, until: null })}
          px={2}
          size="xs"
          variant={name === within ? "solid" : "outline"}
        >
          {words}
        </Button>
      ))}
    </Flex>
  );
}

/** What the numbers do not say: which are estimates, and what may be missing. */
function Limits({ axis, hasLines, topic }: { axis: Schemas["Axis"]; hasLines: boolean; topic: string }) {
  const { counted_topics: counted, topics: all } = axis;
  const words = [
    counted < all && TEXT.countedSomeTopics(counted, all),
    !axis.complete && (topic === "" ? TEXT.smallTopicsMayBeMissing : TEXT.thereMayBeMore),
    hasLines && TEXT.ofTheNewestLeases,
  ];
  return (
    <Text color="fg.muted" fontSize="xs" mt={1}>
      {words.filter(Boolean).join(" ")}
    </Text>
  );
}
