import { Badge, Button, Flex, Input, NativeSelect, Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, get, ofBroker, post, refusal } from "../api";
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
const Counted = ({
  group,
  of,
  view,
  words = count(of),
}: {
  group: Group;
  of: number;
  view: string;
  words?: string;
}) =>
  of === 0 && words === "0" ? (
    "0"
  ) : (
    <PageLink to={{ group: group.group, topic: group.topic }} view={view}>
      {words}
    </PageLink>
  );

/** Of each queue so many ready messages are counted. */
const MOST_READY = 10_000;

/** How many are ready: where a queue may have more, at least so many. */
const readyWords = (ready: number) => (ready < MOST_READY ? "" : TEXT.atLeast) + count(ready);

/** How many are in flight: counted in a bounded number of leases, and not where there was no time. */
const inflightWords = ({ inflight, inflight_is_exact }: Group) =>
  inflight_is_exact ? count(inflight) : inflight > 0 ? TEXT.atLeast + count(inflight) : TEXT.notCounted;

const column = columnsOf<Group>();

/** Which messages a group receives, unless it receives all. */
const chosenWords = ({ filter, tags }: Schemas["GroupProgress"]) =>
  [
    ...(tags === "*" ? [] : [TEXT.tagsOfAGroup(tags)]),
    ...(filter === null ? [] : [TEXT.filterOfAGroup(filter)]),
  ].join(", ");

const columns = (nowAt: string, of: Map<string, Schemas["GroupProgress"]>) => [
  column.accessor("group", {
    cell: ({ row: { original: one } }) => {
      const progress = of.get(nameOf(one));
      const chosen = progress && chosenWords(progress);
      return (
        <>
          {one.group}{" "}
          {one.paused_at && <Badge colorPalette="orange">{TEXT.paused(away(one.paused_at, nowAt))}</Badge>}
          {chosen && (
            <Text color="fg.muted" fontSize="xs">
              {chosen}
            </Text>
          )}
        </>
      );
    },
    header: TEXT.group,
  }),
  column.accessor("topic", { header: TEXT.topic }),
  column.accessor("ready", {
    cell: ({ row: { original: one } }) => readyWords(one.ready),
    header: TEXT.ready,
    ...NUMBER,
  }),
  column.accessor("oldest_deliver_at", {
    cell: ({ row: { original: one } }) => <When at={one.oldest_deliver_at} nowAt={nowAt} />,
    header: TEXT.oldestOfThese,
  }),
  column.accessor("inflight", {
    cell: ({ row: { original: one } }) => (
      <Counted group={one} of={one.inflight} view="leases" words={inflightWords(one)} />
    ),
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
function progressColumns(nowAt: string, of: Map<string, Schemas["GroupProgress"]>) {
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
}) => {
  const of = new Map(progress?.map((one) => [nameOf(one), one]));
  return (
    <Rows
      columns={[
        ...columns(nowAt, of),
        ...(progress ? progressColumns(nowAt, of) : []),
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
};

/** Said where there was no time to look at the groups of all topics. */
export const GroupsLeftOut = ({ to }: { to: string | null }) =>
  to === null ? null : (
    <Text color="fg.muted" fontSize="sm" mb={2}>
      {to === "" ? TEXT.theGroupsWereNotReadInTime : TEXT.thereWasNoTimeForThe(to)}
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
                        <Rewind broker={broker} group={one} nowAt={page.now_at} />
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

function Delete({ broker, group: one }: Act) {
  const { dead, group, inflight, ready, topic, waiting_retry } = one;
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
          number: ready + inflight + dead + waiting_retry,
          words: TEXT.itDoesNotGetAndGoWithIt(
            (ready < MOST_READY ? "" : TEXT.atLeast) + many(ready, TEXT.readyMessage),
            inflightWords(one),
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

/** From where a group may be rewound, besides an instant that is typed. */
const RECENTLY: [name: string, words: string, seconds: number][] = [
  ["15min", TEXT.theLast15Minutes, 900],
  ["hour", TEXT.theLastHour, 3_600],
  ["day", TEXT.theLast24Hours, 86_400],
];

function Rewind({ broker, group: { group, topic }, nowAt }: Act & { nowAt: string }) {
  const [since, setSince] = useState("");
  const [at, setAt] = useState("");
  const [again, setAgain] = useState("");
  const zone = useZone();
  const recent = RECENTLY.find(([name]) => name === since);
  const to = recent
    ? new Date(Date.parse(nowAt) - recent[2] * 1000).toISOString()
    : since === "at"
      ? fromWall(at, zone)
      : since === "all"
        ? "earliest"
        : undefined;
  return (
    <Asking
      act={async () => {
        const rewound = await post<Schemas["Rewound"]>(ofBroker(broker, "groups/rewind"), {
          group,
          to: to ?? "",
          topic,
        });
        return TEXT.theGroupReadsOnFromThat(
          again,
          many(rewound.leases_ended, TEXT.nounLease),
          many(rewound.messages_returned, TEXT.nounMessage),
          many(rewound.retries_taken_back, TEXT.nounRetry, TEXT.nounRetries),
        );
      }}
      action={TEXT.rewind}
      preview={async () => {
        // Nothing is rewound before it is said from where on.
        if (to === undefined) throw refusal("NoInstant", TEXT.chooseFromWhereOn);
        const found = await get<Schemas["Count"]>(ofBroker(broker, "groups/rewind/count"), {
          group,
          to,
          topic,
        });
        const words = `${found.exact ? "" : TEXT.atLeast}${many(found.messages, TEXT.nounMessage)}`;
        setAgain(words);
        return { number: found.messages, words: TEXT.comeAgain(words, found.messages === 1) };
      }}
      previewOf={to ?? ""}
      quiet
      serious
    >
      <Text mb={3}>{TEXT.receivesTheMessagesAgainThatWere(group, topic)}</Text>
      <Text as="label" display="block" fontSize="sm" mb={2}>
        {TEXT.releasedIn}
        <NativeSelect.Root>
          <NativeSelect.Field name="since" onChange={(event) => setSince(event.target.value)} value={since}>
            <option value="">{TEXT.chooseOne}</option>
            {RECENTLY.map(([name, words]) => (
              <option key={name} value={name}>
                {words}
              </option>
            ))}
            <option value="at">{TEXT.theTimeSinceAnInstant}</option>
            <option value="all">{TEXT.allTheTimeThatIsKept}</option>
          </NativeSelect.Field>
          <NativeSelect.Indicator aria-hidden="true" />
        </NativeSelect.Root>
      </Text>
      {since === "at" && (
        <Text as="label" display="block" fontSize="sm">
          {TEXT.sinceIn}
          {zone}
          <Input
            name="to"
            onChange={(event) => setAt(event.target.value)}
            step="1"
            type="datetime-local"
            value={at}
          />
        </Text>
      )}
    </Asking>
  );
}
