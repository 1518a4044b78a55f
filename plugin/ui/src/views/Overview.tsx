import { Fragment, useState } from "react";
import { Badge, Box, Button, Text } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { Chart } from "../Chart";
import { away, count, many, span } from "../format";
import { Answered, PageLink, Section, Warning, When } from "../parts";
import { isSilent } from "../Pulse";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { DueSteps, Uncounted, beginningOf, instants } from "./DueSteps";
import { GroupRows, GroupsLeftOut } from "./Groups";
import { Lateness } from "./Lateness";

const EVERY_SECONDS = 5;

export function Overview({ broker }: { broker: string }) {
  const address = useAddress();
  const topic = address.of("topic");
  const answer = useBroker(
    broker,
    "overview",
    { due_from: beginningOf(address.of("from")), span: address.of("span") || "hour", topic },
    EVERY_SECONDS,
  );
  return (
    <Answered answer={answer}>
      {(view) => (
        <>
          <Warnings view={view} />
          <DueSteps everySeconds={EVERY_SECONDS} view={view} />
          <Section
            extra={<PageLink view="groups">All groups</PageLink>}
            title="Groups, those with dead letters and lag first"
          >
            <GroupsLeftOut to={view.groups_to} />
            <GroupRows groups={view.groups} nowAt={view.now_at} progress={view.progress} />
          </Section>
          <Section title={`The last hour, by minute${topic && `, on ${topic}`}`}>
            <Flow topic={topic} view={view} />
          </Section>
          <Lateness broker={broker} topic={topic} view={view} />
          <Wheels view={view} />
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

function Warnings({ view }: { view: Schemas["Overview"] }) {
  const counted = new Map(view.overdue_messages.map((one) => [one.topic, one]));
  return (
    <>
      {view.overdue.length > 0 && (
        <Warning>
          {view.wheels.length === 0
            ? "No wheel turns, and messages are due. Start Airflow's triggerer, or `duewheel wheel run`. Topics: "
            : "Messages are due and not released, though a wheel is connected. See its log. Topics: "}
          {view.overdue.slice(0, 5).map((one, index) => {
            const due = counted.get(one.topic);
            return (
              <Fragment key={one.topic}>
                {index > 0 && ", "}
                <PageLink to={{ topic: one.topic }} view="messages">
                  {one.topic}
                </PageLink>{" "}
                since {span((Date.parse(view.now_at) - Date.parse(one.due_at)) / 1000)}
                {due && ` (${count(due.messages, due.exact)} due)`}
              </Fragment>
            );
          })}
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
    </>
  );
}

/** The wheels in one line, and each with its sessions where one is asked for or does not turn. */
function Wheels({ view: { now_at, wheels } }: { view: Schemas["Overview"] }) {
  const [open, setOpen] = useState<boolean>();
  if (wheels.length === 0) {
    return (
      <Section title="No wheel is connected">
        <Text color="fg.muted" fontSize="sm">
          Without a wheel, messages are released only when a consumer receives. A wheel turns in Airflow’s
          triggerer while a DAG watches a topic, and in `duewheel wheel run`.
        </Text>
      </Section>
    );
  }
  const still = wheels.filter((one) => one.active_at !== null && isSilent(one.active_at, now_at)).length;
  const isOpen = open ?? still > 0;
  return (
    <Section
      extra={
        <Button aria-expanded={isOpen} onClick={() => setOpen(!isOpen)} size="xs" variant="outline">
          {isOpen ? "Hide the wheels" : "Show the wheels"}
        </Button>
      }
      title={`${many(wheels.length - still, "wheel turns", "wheels turn")}${still > 0 ? `, ${still} ${still === 1 ? "does" : "do"} not` : ""}`}
    >
      {isOpen && (
        <Rows
          columns={wheelColumns(now_at)}
          empty=""
          keyOf={(one) => `${one.name} ${one.login} ${one.client_address}`}
          label="Wheels"
          rows={wheels}
        />
      )}
    </Section>
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
