import { Badge, Button, Flex, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, ofBroker, post, refusal } from "../api";
import { useAddress } from "../address";
import { Asking } from "../Asking";
import { away, count, many } from "../format";
import { Answered, PageLink, Pages, Section, Shown, When } from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { fromWall, useZone } from "../zone";
import { TEXT } from "../texts";

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
        {one.paused_at && <Badge colorPalette="orange">{TEXT.paused(away(one.paused_at, nowAt))}</Badge>}
      </>
    ),
    header: TEXT.group,
  }),
  column.accessor("topic", { header: TEXT.topic }),
  // Counted up to 10 000 for each queue and slot.
  column.accessor("ready", {
    cell: ({ row: { original: one } }) => count(one.ready),
    header: TEXT.ready,
    ...NUMBER,
  }),
  column.accessor("oldest_deliver_at", {
    cell: ({ row: { original: one } }) => <When at={one.oldest_deliver_at} nowAt={nowAt} />,
    header: TEXT.oldestOfThese,
  }),
  column.accessor("inflight", {
    cell: ({ row: { original: one } }) => <Counted group={one} of={one.inflight} view="leases" />,
    header: TEXT.inFlight,
    ...NUMBER,
  }),
  column.accessor("waiting_retry", {
    cell: ({ row: { original: one } }) => <Counted group={one} of={one.waiting_retry} view="retries" />,
    header: TEXT.waitingForARetry,
    ...NUMBER,
  }),
  column.accessor("dead", {
    cell: ({ row: { original: one } }) => <Counted group={one} of={one.dead} view="dead" />,
    header: TEXT.deadLetters,
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
      header: TEXT.readTo,
      id: "read_to",
    }),
    column.display({
      cell: ({ row: { original: one } }) => {
        const since = of.get(nameOf(one))?.stalled_since;
        return since && <Badge colorPalette="red">{TEXT.sinceASpan(away(since, nowAt))}</Badge>;
      },
      header: TEXT.standsStill,
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
          header: TEXT.actions,
          id: "actions",
        }),
    ]}
    empty={TEXT.noGroupsYetAGroupIs}
    keyOf={nameOf}
    label={TEXT.consumerGroups}
    rows={groups}
  />
);

/** Said where there was no time to look at the groups of all topics. */
export const GroupsLeftOut = ({ to }: { to: string | null }) =>
  to === null ? null : (
    <Text color="fg.muted" fontSize="sm" mb={2}>
      {TEXT.thereWasNoTimeForThe(to)}
    </Text>
  );

const SORTS: Record<string, string> = {
  topic: TEXT.byTopic,
  lag: TEXT.thatLagMost,
  dead: TEXT.withTheMostDeadLetters,
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
      title={TEXT.groups}
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
        return isPaused ? TEXT.goesOn(group) : TEXT.isPaused(group);
      }}
      action={isPaused ? TEXT.resume : TEXT.pause}
      quiet
    >
      <Text>
        {isPaused
          ? TEXT.receivesTheMessagesOfAgainFrom(group, topic)
          : TEXT.receivesNoMessagesOfUntilIt(group, topic) + TEXT.andLeasesEndAsEver}
      </Text>
    </Asking>
  );
}

function Delete({ broker, group: { group, topic, dead, waiting_retry } }: Act) {
  return (
    <Asking
      act={async () => {
        await post(ofBroker(broker, "groups/delete"), { group, topic });
        return TEXT.isDeletedOn(group, topic);
      }}
      action={TEXT.delete}
      quiet
      preview={() =>
        Promise.resolve({
          number: dead + waiting_retry,
          words: TEXT.andGoWithIt(
            many(dead, TEXT.deadLetter),
            many(waiting_retry, TEXT.nounRetry, TEXT.nounRetries),
          ),
        })
      }
      serious
    >
      <Text>{TEXT.theGroupLosesItsPlace(group, topic)}</Text>
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
        if (isHalf) throw refusal("NoInstant", TEXT.theInstantIsNotCompleteNothing);
        const rewound = await post<Schemas["Rewound"]>(ofBroker(broker, "groups/rewind"), {
          group: group.group,
          to: fromWall(to, zone) ?? "earliest",
          topic: group.topic,
        });
        return TEXT.theGroupReadsOnFromThat(
          many(rewound.leases_ended, TEXT.nounLease),
          many(rewound.messages_returned, TEXT.nounMessage),
          many(rewound.retries_taken_back, TEXT.nounRetry, TEXT.nounRetries),
        );
      }}
      action={TEXT.rewind}
      quiet
      serious
    >
      <Text mb={3}>{TEXT.receivesTheMessagesAgainThatWere(group.group, group.topic)}</Text>
      <Text as="label" fontSize="sm">
        {TEXT.sinceIn}
        {zone}
        {TEXT.emptyAllStoredMessages}
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
