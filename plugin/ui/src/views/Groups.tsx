import { Badge, Box, Button, Flex, Text } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { away, count, span } from "../format";
import { Exports } from "../Exports";
import { Filters } from "../Filters";
import { inflightWords, readyWords } from "../groupStory";
import { Answered } from "../Answered";
import { Filter } from "../filterFields";
import { GroupLink, PageLink, TopicLink } from "../links";
import { MOST_SHOWN, Pages, Shown } from "../Pages";
import { Section, When } from "../parts";
import { rowsIn, useBroker } from "../queries";
import { ACTIONS, type ListProps, NUMBER, Rows, columnsOf } from "../Rows";
import { GroupActions } from "./GroupActions";
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

const column = columnsOf<Group>();

/** Which messages a group receives, unless it receives all. */
const restrictionWords = ({ filter, tags }: Schemas["GroupProgress"]) =>
  [
    ...(tags === "*" ? [] : [TEXT.tagsOfAGroup(tags)]),
    ...(filter === null ? [] : [TEXT.filterOfAGroup(filter)]),
  ].join(", ");

const columns = (nowAt: string, of: Map<string, Schemas["GroupProgress"]>) => [
  column.accessor("group", {
    cell: ({ row: { original: one } }) => {
      const progress = of.get(nameOf(one));
      const restriction = progress && restrictionWords(progress);
      return (
        <>
          <GroupLink group={one.group} topic={one.topic} />{" "}
          {one.paused_at && (
            // On a line of its own, the link needs no other mark than its color.
            <Box>
              <Badge colorPalette="orange">{TEXT.paused(away(one.paused_at, nowAt))}</Badge>
            </Box>
          )}
          {restriction && (
            <Text color="fg.muted" fontSize="xs">
              {restriction}
            </Text>
          )}
        </>
      );
    },
    header: TEXT.group,
  }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
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

/** How far each group has read, and whether it takes nothing. */
function progressColumns(nowAt: string, of: Map<string, Schemas["GroupProgress"]>) {
  return [
    column.display({
      cell: ({ row: { original: one } }) => <When at={of.get(nameOf(one))?.read_to ?? null} nowAt={nowAt} />,
      header: TEXT.position,
      id: "read_to",
    }),
    column.display({
      cell: ({ row: { original: one } }) =>
        one.idle_since && (
          <Badge colorPalette="red">
            {TEXT.forASpan(span((Date.parse(nowAt) - Date.parse(one.idle_since)) / 1000))}
          </Badge>
        ),
      header: TEXT.stalled,
      id: "idle_since",
    }),
  ];
}

export const GroupRows = ({
  broker,
  list = "",
  mayAct,
  page: { groups, now_at: nowAt, progress },
  read,
}: ListProps & {
  broker: string;
  mayAct: boolean;
  page: Schemas["Groups"];
}) => {
  const of = new Map(progress.map((one) => [nameOf(one), one]));
  return (
    <Rows
      columns={[
        ...columns(nowAt, of),
        ...progressColumns(nowAt, of),
        mayAct &&
          column.display({
            cell: ({ row: { original: one } }) => <GroupActions broker={broker} group={one} nowAt={nowAt} />,
            ...ACTIONS,
          }),
      ]}
      empty={TEXT.noGroupsYetAGroupIs}
      keyOf={nameOf}
      label={TEXT.consumerGroups}
      list={list}
      read={read}
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

/** The number of groups, and whether it is that of all. */
const numberOf = ({ groups, groups_to, next }: Schemas["Groups"]) =>
  [groups.length, groups_to === null && next === null && groups.length < MOST_SHOWN] as const;

const SORTS: Record<string, string> = {
  topic: TEXT.byTopic,
  lag: TEXT.thatLagMost,
  dead: TEXT.withTheMostDeadLetters,
};

export function Groups({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const address = useAddress();
  const after = address.of("after");
  const sort = address.of("sort") || "topic";
  const where = { group: address.of("group"), topic: address.of("topic") };
  const isFiltered = where.group !== "" || where.topic !== "";
  const answer = useBroker(broker, "groups", { ...where, after, sort });
  return (
    <Section
      count={after === "" && rowsIn(answer, numberOf)}
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
      <Filters names={{ group: TEXT.group, topic: TEXT.topic }}>
        <Filter label={TEXT.group} name="group" placeholder={TEXT.all} />
        <Filter label={TEXT.topic} name="topic" placeholder={TEXT.all} />
      </Filters>
      <Answered answer={answer}>
        {(page) => (
          <>
            <GroupsLeftOut to={page.groups_to} />
            <GroupRows
              broker={broker}
              list="groups"
              mayAct={mayAct}
              page={page}
              read={{ at: page.now_at, readAt: answer.readAt }}
            />
            {isFiltered ? null : sort === "topic" ? (
              <Pages next={page.next} />
            ) : (
              <Shown first={SORTS[sort] ?? ""} of={page.groups} />
            )}
            <Exports broker={broker} list="groups" of={page.groups} where={{ ...where, sort }} />
          </>
        )}
      </Answered>
    </Section>
  );
}
