import { Badge, Button, Flex, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Failure, type Schemas, ofBroker, post } from "../api";
import { useAddress } from "../address";
import { Asking } from "../Asking";
import { away, count, many } from "../format";
import { Answered, PageLink, Pages, Section, Shown, When } from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { fromWall, useZone } from "../zone";

type Group = Schemas["GroupNumbers"];

/** A number that leads to what it counts; nothing leads from a zero. */
const Counted = ({ group, of, view }: { group: Group; of: number; view: string }) =>
  of === 0 ? (
    "0"
  ) : (
    <PageLink to={{ group: group.group, topic: group.topic }} view={view}>
      {count(of)}
    </PageLink>
  );

const column = columnsOf<Group>();

const columns = (nowAt: string) => [
  column.accessor("group", {
    cell: ({ row: { original: one } }) => (
      <>
        {one.group}{" "}
        {one.paused_at && <Badge colorPalette="orange">paused {away(one.paused_at, nowAt)}</Badge>}
      </>
    ),
    header: "Group",
  }),
  column.accessor("topic", { header: "Topic" }),
  // Counted up to 10 000 for each queue and slot.
  column.accessor("ready", {
    cell: ({ row: { original: one } }) => count(one.ready),
    header: "Ready",
    ...NUMBER,
  }),
  column.accessor("oldest_deliver_at", {
    cell: ({ row: { original: one } }) => <When at={one.oldest_deliver_at} nowAt={nowAt} />,
    header: "Oldest of these",
  }),
  column.accessor("inflight", {
    cell: ({ row: { original: one } }) => <Counted group={one} of={one.inflight} view="leases" />,
    header: "In flight",
    ...NUMBER,
  }),
  column.accessor("waiting_retry", {
    cell: ({ row: { original: one } }) => <Counted group={one} of={one.waiting_retry} view="retries" />,
    header: "Waiting for a retry",
    ...NUMBER,
  }),
  column.accessor("dead", {
    cell: ({ row: { original: one } }) => <Counted group={one} of={one.dead} view="dead" />,
    header: "Dead letters",
    ...NUMBER,
  }),
];

const nameOf = (one: { group: string; topic: string }) => `${one.group} ${one.topic}`;

/** How far each group has read. */
function progressColumns(nowAt: string, progress: Schemas["GroupProgress"][]) {
  const of = new Map(progress.map((one) => [nameOf(one), one]));
  return [
    column.display({
      cell: ({ row: { original: one } }) => <When at={of.get(nameOf(one))?.read_to ?? null} nowAt={nowAt} />,
      header: "Read to",
      id: "read_to",
    }),
    column.display({
      cell: ({ row: { original: one } }) => {
        const since = of.get(nameOf(one))?.stalled_since;
        return since && <Badge colorPalette="red">since {away(since, nowAt)}</Badge>;
      },
      header: "Stands still",
      id: "stalled_since",
    }),
  ];
}

export const GroupRows = ({
  actions,
  groups,
  nowAt,
  progress,
}: {
  actions?: (group: Group) => React.ReactNode;
  groups: Group[];
  nowAt: string;
  progress?: Schemas["GroupProgress"][];
}) => (
  <Rows
    columns={[
      ...columns(nowAt),
      ...(progress ? progressColumns(nowAt, progress) : []),
      actions &&
        column.display({
          cell: ({ row: { original: one } }) => actions(one),
          header: "Actions",
          id: "actions",
        }),
    ]}
    empty="No groups yet: a group is made by its first consumer."
    keyOf={nameOf}
    label="Consumer groups"
    rows={groups}
  />
);

/** Said where there was no time to look at the groups of all topics. */
export const GroupsLeftOut = ({ to }: { to: string | null }) =>
  to === null ? null : (
    <Text color="fg.muted" fontSize="sm" mb={2}>
      There was no time for the topics behind “{to}”, by name.
    </Text>
  );

const SORTS: Record<string, string> = {
  topic: "by topic",
  lag: "that lag most",
  dead: "with the most dead letters",
};

export function Groups({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const address = useAddress();
  const after = address.of("after");
  const sort = address.of("sort") || "topic";
  const answer = useBroker(broker, "groups", { after, sort });
  return (
    <Section
      extra={
        <Flex gap={2} wrap="wrap">
          {Object.entries(SORTS).map(([name, words]) => (
            <Button
              aria-pressed={name === sort}
              key={name}
              onClick={() => address.set({ after: null, sort: name })}
              size="xs"
              variant={name === sort ? "solid" : "outline"}
            >
              {words}
            </Button>
          ))}
        </Flex>
      }
      title="Groups"
    >
      <Answered answer={answer} asOf={(page) => page.now_at}>
        {(page) => (
          <>
            <GroupsLeftOut to={page.groups_to} />
            <GroupRows
              groups={page.groups}
              nowAt={page.now_at}
              progress={page.progress}
              {...(mayAct
                ? {
                    actions: (one: Group) => (
                      <Flex gap={1} wrap="wrap">
                        <Pause broker={broker} group={one} />
                        <Rewind broker={broker} group={one} />
                        <Delete broker={broker} group={one} />
                      </Flex>
                    ),
                  }
                : {})}
            />
            {sort === "topic" ? (
              <Pages next={page.next} />
            ) : (
              <Shown first={SORTS[sort] ?? ""} of={page.groups} />
            )}
          </>
        )}
      </Answered>
    </Section>
  );
}

type Act = { broker: string; group: Group };

function Pause({ broker, group: { group, paused_at, topic } }: Act) {
  const isPaused = paused_at !== null;
  return (
    <Asking
      act={async () => {
        await post(ofBroker(broker, `groups/${isPaused ? "resume" : "pause"}`), { group, topic });
        return isPaused ? `${group} goes on.` : `${group} is paused.`;
      }}
      action={isPaused ? "Resume" : "Pause"}
      quiet
    >
      <Text>
        {isPaused
          ? `${group} receives the messages of ${topic} again, from where it stands.`
          : `${group} receives no messages of ${topic} until it is resumed. What it has in hand may be acked, ` +
            "and leases end as ever."}
      </Text>
    </Asking>
  );
}

function Delete({ broker, group: { group, topic, dead, waiting_retry } }: Act) {
  return (
    <Asking
      act={async () => {
        await post(ofBroker(broker, "groups/delete"), { group, topic });
        return `${group} is deleted on ${topic}.`;
      }}
      action="Delete"
      quiet
      preview={() =>
        Promise.resolve({
          number: dead + waiting_retry,
          words: `${many(dead, "dead letter")} and ${many(waiting_retry, "retry", "retries")} go with it.`,
        })
      }
      serious
    >
      <Text>
        {group} loses its place on {topic}, its leases, retries and dead letters. Messages stay. A consumer
        that subscribes again makes the group anew. This cannot be undone.
      </Text>
    </Asking>
  );
}

function Rewind({ broker, group }: Act) {
  const [to, setTo] = useState("");
  const zone = useZone();
  const [isHalf, setIsHalf] = useState(false);
  return (
    <Asking
      act={async () => {
        // An incomplete instant has no value, and would be taken for an empty field.
        if (isHalf) throw new Failure(0, "NoInstant", "The instant is not complete. Nothing was changed.");
        const rewound = await post<Schemas["Rewound"]>(ofBroker(broker, "groups/rewind"), {
          group: group.group,
          to: fromWall(to, zone) ?? "earliest",
          topic: group.topic,
        });
        return (
          `The group reads on from that instant. Ended: ${many(rewound.leases_ended, "lease")}; ready again: ` +
          `${many(rewound.messages_returned, "message")}; taken back: ` +
          `${many(rewound.retries_taken_back, "retry", "retries")}.`
        );
      }}
      action="Rewind"
      quiet
      serious
    >
      <Text mb={3}>
        {group.group} receives the messages again that were released on {group.topic} since this instant. Open
        leases of its consumers end. Dead letters stay.
      </Text>
      <Text as="label" fontSize="sm">
        Since, in {zone} (empty: all stored messages)
        <Input
          name="to"
          onBlur={(event) => setIsHalf(event.target.validity.badInput)}
          onChange={(event) => setTo(event.target.value)}
          step="1"
          type="datetime-local"
          value={to}
        />
      </Text>
    </Asking>
  );
}
