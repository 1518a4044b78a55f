import { Fragment } from "react";
import { Badge, Box, Button, Flex, Grid, Text } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { Chart, type Series } from "../Chart";
import { away, count, instant, span } from "../format";
import { Answered, Filter, PageLink, Section, Warning, When } from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { useZone } from "../zone";
import { isSilent } from "../Pulse";
import { GroupRows, GroupsLeftOut } from "./Groups";

const SPANS: Record<string, string> = {
  days: "next 3 days by hour",
  hour: "next hour by minute",
  minute: "next minute by second",
};
const COLORS = ["blue-500", "green-500", "orange-500", "purple-500", "teal-500"];
const EVERY_SECONDS = 5;

/** The largest topics singly, all others together. */
export function byTopic(due: Schemas["DueHistogram"]): Series[] {
  const sums = new Map<string, number>();
  for (const one of due.due) sums.set(one.topic, (sums.get(one.topic) ?? 0) + one.messages);
  const largest = [...sums].sort((one, other) => other[1] - one[1]).map(([topic]) => topic);
  const shown = largest.slice(0, largest.length > COLORS.length ? COLORS.length - 1 : COLORS.length);
  const names = largest.length > shown.length ? [...shown, `${largest.length - shown.length} others`] : shown;
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

const instants = (due: Schemas["DueHistogram"]) =>
  Array.from({ length: due.steps }, (_, step) => Date.parse(due.from_at) / 1000 + step * due.step_seconds);

function total(due: Schemas["DueHistogram"]): string {
  const messages = due.due.reduce((sum, one) => sum + one.messages, 0);
  const words = count(
    messages,
    due.due.every((one) => one.exact),
  );
  return due.counted_steps < due.steps ? `at least ${words}` : words;
}

/** What a hatched chart means, below it. */
function Uncounted({ due, topic }: { due: Schemas["DueHistogram"]; topic: string }) {
  const zone = useZone();
  if (due.counted_steps >= due.steps) return null;
  const from = new Date(Date.parse(due.from_at) + due.counted_steps * due.step_seconds * 1000);
  return (
    <Text color="fg.muted" fontSize="sm">
      {topic === ""
        ? "Hatched: there was no time to count all topics, so there may be more. One topic is counted alone: choose it above."
        : `Hatched: there was no time to count from ${instant(from.toISOString(), zone)} on, so there may be more.`}
    </Text>
  );
}

const late = columnsOf<Schemas["TopicLateness"]>();

const lateColumns = (nowAt: string) => [
  late.accessor("topic", {
    cell: ({ row: { original: one } }) => (
      <PageLink to={{ state: "released", topic: one.topic }} view="messages">
        {one.topic}
      </PageLink>
    ),
    header: "Topic",
  }),
  late.accessor("p50_seconds", {
    cell: ({ row: { original: one } }) => span(one.p50_seconds),
    header: "p50",
    ...NUMBER,
  }),
  late.accessor("p99_seconds", {
    cell: ({ row: { original: one } }) => span(one.p99_seconds),
    header: "p99",
    ...NUMBER,
  }),
  late.accessor("by_wheel", {
    cell: ({ row: { original: one } }) => (one.by_wheel ? "wheel" : "receivers"),
    header: "Released by",
  }),
  late.accessor("newest_at", {
    cell: ({ row: { original: one } }) => away(one.newest_at, nowAt),
    header: "Newest",
  }),
];

export function Overview({ broker }: { broker: string }) {
  const address = useAddress();
  const within = address.of("span") || "hour";
  const topic = address.of("topic");
  const answer = useBroker(broker, "overview", { span: within, topic }, EVERY_SECONDS);
  return (
    <Answered answer={answer}>
      {(view) => (
        <>
          <Wheels view={view} />
          <Section
            extra={
              <Flex align="end" gap={2} wrap="wrap">
                <Filter label="Topic" name="topic" placeholder="all" width="10rem" />
                {Object.entries(SPANS).map(([name, words]) => (
                  <Button
                    aria-pressed={name === within}
                    key={name}
                    onClick={() => address.set({ span: name })}
                    size="xs"
                    variant={name === within ? "solid" : "outline"}
                  >
                    {words}
                  </Button>
                ))}
              </Flex>
            }
            title={`Due: ${total(view.due)} in the ${SPANS[within] ?? ""}`}
          >
            <Chart
              at={instants(view.due)}
              bars
              countedSteps={view.due.counted_steps}
              label={`Messages due in the ${SPANS[within] ?? ""}, by topic: ${total(view.due)} in all`}
              series={byTopic(view.due)}
            />
            <Text color="fg.muted" fontSize="xs">
              As of <When at={view.now_at} />
              {view.shared_seconds > EVERY_SECONDS &&
                `: it is computed once in ${span(view.shared_seconds)} for all users`}
            </Text>
            <Uncounted due={view.due} topic={topic} />
          </Section>
          <Grid gap={4} templateColumns={{ base: "minmax(0, 1fr)", lg: "minmax(0, 1fr) minmax(0, 1fr)" }}>
            <Section title={`The last hour, by minute${topic && `, on ${topic}`}`}>
              <Flow topic={topic} view={view} />
            </Section>
            <Section title="Lateness of release">
              <Rows
                columns={lateColumns(view.now_at)}
                empty="Nothing was released in the last hour."
                keyOf={(one) => one.topic}
                label="Lateness of release by topic"
                rows={view.lateness}
                sorts
              />
            </Section>
          </Grid>
          <Section
            extra={<PageLink view="groups">All groups</PageLink>}
            title="Groups, those with dead letters and lag first"
          >
            <GroupsLeftOut to={view.groups_to} />
            <GroupRows groups={view.groups} nowAt={view.now_at} />
          </Section>
        </>
      )}
    </Answered>
  );
}

const HOLDS: Record<string, string> = {
  tables: "the broker’s tables, in an open transaction",
  topic: "the lock of a topic",
  transaction: "an open transaction that has written",
  upkeep: "the lock of upkeep",
};

const holder = columnsOf<Schemas["UpkeepHolder"]>();

const holderColumns = (nowAt: string) => [
  holder.accessor("pid", {
    cell: ({ row: { original: one } }) =>
      one.gid === null ? `pid ${one.pid}` : `the prepared transaction ${one.gid}`,
    header: "By",
  }),
  holder.accessor("login", { header: "Login" }),
  holder.accessor("application", { header: "Application" }),
  holder.accessor("state", {
    cell: ({ row: { original: one } }) => one.state ?? "hidden",
    header: "State",
  }),
  holder.accessor("since_at", {
    cell: ({ row: { original: one } }) =>
      one.since_at === null ? "over an hour" : <When at={one.since_at} nowAt={nowAt} />,
    header: "Since",
  }),
  holder.accessor("holds", {
    cell: ({ row: { original: one } }) => HOLDS[one.holds] ?? one.holds,
    header: "Holds",
  }),
];

const wheel = columnsOf<Schemas["TurningWheel"]>();

const wheelColumns = (nowAt: string) => [
  wheel.accessor("name", { header: "Machine and process" }),
  wheel.accessor("client_address", {
    cell: ({ row: { original: one } }) =>
      one.client_address ?? "the database’s machine, or hidden from the page’s login",
    header: "Address",
  }),
  wheel.accessor("login", { header: "Login" }),
  wheel.accessor("connections", { header: "Sessions", ...NUMBER }),
  wheel.accessor("started_at", {
    cell: ({ row: { original: one } }) => <When at={one.started_at} nowAt={nowAt} />,
    header: "Turning since",
  }),
  wheel.accessor("active_at", {
    cell: ({ row: { original: one } }) => <LastActive at={one.active_at} nowAt={nowAt} />,
    header: "Last active",
  }),
];

function Wheels({ view }: { view: Schemas["Overview"] }) {
  return (
    <>
      {view.overdue.length > 0 && (
        <Warning>
          {view.wheels.length === 0
            ? "No wheel turns, and messages are due. Start Airflow's triggerer, or `duewheel wheel run`. Topics: "
            : "Messages are due and not released, though a wheel is connected. See its log. Topics: "}
          {view.overdue.slice(0, 5).map((one, index) => (
            <Fragment key={one.topic}>
              {index > 0 && ", "}
              <PageLink to={{ topic: one.topic }} view="messages">
                {one.topic}
              </PageLink>{" "}
              since {span((Date.parse(view.now_at) - Date.parse(one.due_at)) / 1000)}
            </Fragment>
          ))}
          {view.overdue.length > 5 && ` and ${view.overdue.length - 5} others`}
        </Warning>
      )}
      {view.held_up_by.length > 0 && (
        <Section title="Upkeep is held up">
          <Rows
            columns={holderColumns(view.now_at)}
            empty=""
            keyOf={(one) => one.gid ?? String(one.pid)}
            label="Sessions that hold upkeep up"
            rows={view.held_up_by}
          />
        </Section>
      )}
      <Section title={view.wheels.length === 0 ? "No wheel is connected" : "Wheels"}>
        {view.wheels.length === 0 ? (
          <Text color="fg.muted" fontSize="sm">
            Without a wheel, messages are released only when a consumer receives. A wheel turns in Airflow’s
            triggerer while a DAG watches a topic, and in `duewheel wheel run`.
          </Text>
        ) : (
          <Rows
            columns={wheelColumns(view.now_at)}
            empty=""
            keyOf={(one) => `${one.name} ${one.login} ${one.client_address}`}
            label="Wheels"
            rows={view.wheels}
          />
        )}
      </Section>
    </>
  );
}

function LastActive({ at, nowAt }: { at: string | null; nowAt: string }) {
  if (at === null) return "–";
  return (
    <>
      {away(at, nowAt)} {isSilent(at, nowAt) && <Badge colorPalette="red">does not turn</Badge>}
    </>
  );
}

function Flow({ topic, view }: { topic: string; view: Schemas["Overview"] }) {
  const steps = view.past.steps;
  const due = new Array<number>(steps).fill(0);
  for (const one of view.past.due) due[one.step] = (due[one.step] ?? 0) + one.messages;
  const of = (name: "acked" | "failed" | "received") => {
    const values = new Array<number>(steps).fill(0);
    for (const one of view.flow) if (one.step < steps) values[one.step] = one[name];
    return values;
  };
  return (
    <Box>
      <Chart
        at={instants(view.past)}
        countedSteps={view.past.counted_steps}
        label="Messages that came due, were received, acked and failed, by minute"
        series={[
          { color: "gray-500", label: "came due", values: due },
          { color: "blue-500", label: "received", values: of("received") },
          { color: "green-500", label: "acked", values: of("acked") },
          { color: "red-500", label: "failed", values: of("failed") },
        ]}
      />
      <Uncounted due={view.past} topic={topic} />
    </Box>
  );
}
