import { Box, Flex, Text } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { count, exactInstant, many } from "../format";
import { SelectionBar, counted, selector, useSelection } from "../selecting";
import { Exports } from "../Exports";
import { Filters } from "../Filters";
import { Answered } from "../Answered";
import { Filter, InstantFilter } from "../filterFields";
import { MessageLink, PageLink, TopicLink } from "../links";
import { Pages, Shown } from "../Pages";
import { Section, Warning, When } from "../parts";
import { useBroker } from "../queries";
import { ACTIONS, NUMBER, Rows, columnsOf } from "../Rows";
import { isInstant, useZone } from "../zone";
import { ActOnAll, ActOnSelected, RedriveAll, type Where, given, untilOf } from "./DeadLetterActions";
import { GroupsLeftOut } from "./Groups";
import { TEXT } from "../texts";
import { Reason } from "../Words";

type Rights = { mayAct: boolean; mayReadBodies: boolean };

export function DeadLetters({ broker, mayAct, mayReadBodies }: Rights & { broker: string }) {
  const address = useAddress();
  const group = address.of("group");
  const where: Where = {
    dead_from: address.of("from"),
    dead_until: address.of("until"),
    group,
    key_prefix: address.of("key"),
    reason_contains: address.of("reason"),
    reason_lacks: address.of("lacks"),
    topic: address.of("topic"),
  };
  // The actions on a reason take no such criteria, and would reach more than the list shows.
  const hasReasons = where.key_prefix === "" && where.reason_contains === "" && where.reason_lacks === "";
  const isUnderstood = [where.dead_from, where.dead_until].every((at) => at === "" || isInstant(at));
  return (
    <Section title={TEXT.deadLettersByTopicTheOldest}>
      <Filters
        names={{
          group: TEXT.group,
          topic: TEXT.topic,
          key: TEXT.keyBeginsWith,
          reason: TEXT.reasonContains,
          lacks: TEXT.reasonDoesNotContain,
          from: TEXT.deadFrom,
          until: TEXT.deadBefore,
        }}
      >
        <Filter label={TEXT.group} name="group" />
        <Filter label={TEXT.topic} name="topic" placeholder={TEXT.all} />
        <Filter label={TEXT.keyBeginsWith} name="key" />
        <Filter label={TEXT.reasonContains} name="reason" />
        <Filter label={TEXT.reasonDoesNotContain} name="lacks" />
        <InstantFilter label={TEXT.deadFrom} name="from" />
        <InstantFilter label={TEXT.deadBefore} name="until" />
      </Filters>
      {group === "" ? (
        <Choices broker={broker} />
      ) : isUnderstood ? (
        <>
          {hasReasons && <Reasons broker={broker} mayAct={mayAct} where={where} />}
          <List broker={broker} mayAct={mayAct} mayReadBodies={mayReadBodies} where={where} />
        </>
      ) : (
        <Warning>{TEXT.theFilterIsNotUnderstoodSo}</Warning>
      )}
    </Section>
  );
}

const ofGroup = columnsOf<Schemas["GroupNumbers"]>();

const GROUP_COLUMNS = [
  ofGroup.accessor("group", {
    cell: ({ row: { original: one } }) => (
      <PageLink to={{ group: one.group, topic: one.topic }} view="dead">
        {one.group}
      </PageLink>
    ),
    header: TEXT.group,
  }),
  ofGroup.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  ofGroup.accessor("dead", {
    cell: ({ row: { original: one } }) => count(one.dead),
    header: TEXT.deadLetters,
    ...NUMBER,
  }),
  ofGroup.accessor("dropped_soon", {
    cell: ({ row: { original: one } }) => count(one.dropped_soon),
    header: TEXT.droppedWithinADay,
    ...NUMBER,
  }),
];

/** The groups that have dead letters, those with the most first, to choose from. */
function Choices({ broker }: { broker: string }) {
  const answer = useBroker(broker, "groups", { sort: "dead" });
  return (
    <Answered answer={answer}>
      {(page) => {
        const some = page.groups.filter((one) => one.dead > 0);
        return (
          <>
            <GroupsLeftOut to={page.groups_to} />
            <Rows
              columns={GROUP_COLUMNS}
              empty={TEXT.noGroupHasDeadLetters}
              keyOf={(one) => `${one.group} ${one.topic}`}
              label={TEXT.groupsWithDeadLetters}
              read={{ at: page.now_at, readAt: answer.readAt }}
              rows={some}
            />
            <Shown first={TEXT.withTheMost} of={some} />
          </>
        );
      }}
    </Answered>
  );
}

const ofReason = columnsOf<Schemas["DeadLetterReason"]>();

const reasonColumns = ({ dead_from, dead_until, group, topic }: Where) => [
  ofReason.accessor("reason", {
    cell: ({ row: { original: one } }) =>
      one.reason === null ? (
        "–"
      ) : (
        <PageLink
          to={{ from: dead_from, group, reason: one.reason.slice(0, 200), topic, until: dead_until }}
          view="dead"
        >
          <Reason of={one.reason} />
        </PageLink>
      ),
    header: TEXT.reason,
  }),
  ofReason.accessor("messages", {
    cell: ({ row: { original: one } }) => count(one.messages),
    header: TEXT.deadLetters,
    ...NUMBER,
  }),
  ofReason.accessor("first_dead_at", {
    cell: ({ row: { original: one } }) => <When at={one.first_dead_at} />,
    header: TEXT.first,
  }),
  ofReason.accessor("last_dead_at", {
    cell: ({ row: { original: one } }) => <When at={one.last_dead_at} />,
    header: TEXT.last,
  }),
];

/** The reasons of the group's open dead letters of that time, each with its own actions. */
function Reasons({ broker, mayAct, where }: { broker: string; mayAct: boolean; where: Where }) {
  const { dead_from, dead_until, group, topic } = where;
  const those = { dead_from, dead_until, group, topic };
  const answer = useBroker(broker, "dead-letter-reasons", those);
  const zone = useZone();
  const when = [
    dead_from && TEXT.fromAnInstant(exactInstant(dead_from, zone)),
    dead_until && TEXT.before(exactInstant(dead_until, zone)),
  ].join("");
  const question = (what: string) =>
    TEXT.allDeadLettersOfWithThis(
      group,
      topic && TEXT.onTheTopicOf(topic),
      when && TEXT.deadIn(when, zone),
      what,
    );
  // The list below says that the group or the topic is unknown.
  if (answer.error?.status === 404) return null;
  return (
    <Answered answer={answer}>
      {({ complete, now_at, reasons }) =>
        reasons.length === 0 ? (
          !complete && <Warning>{TEXT.noReasonsAreShownAsNone}</Warning>
        ) : (
          <Box mb={5}>
            {!complete && (
              <Text color="fg.muted" fontSize="sm">
                {TEXT.of20000AtMostOnEachTopic}
              </Text>
            )}
            <Rows
              columns={[
                ...reasonColumns(where),
                mayAct &&
                  ofReason.display({
                    cell: ({ row: { original: one } }) =>
                      one.reason !== null && (
                        <Flex gap={1} wrap="wrap">
                          <ActOnAll
                            action={TEXT.redrive}
                            broker={broker}
                            count={haveIt}
                            question={
                              <OfReason reason={one.reason} words={question(TEXT.sentAgainEachOnce)} />
                            }
                            quiet
                            until={untilOf(where, now_at)}
                            which={{ ...given(those), reason: one.reason }}
                          />
                          <ActOnAll
                            action={TEXT.discard}
                            broker={broker}
                            count={haveIt}
                            isDiscard
                            question={
                              <OfReason
                                reason={one.reason}
                                words={question(TEXT.discardedAndNeverSentAgain)}
                              />
                            }
                            quiet
                            until={untilOf(where, now_at)}
                            which={{ ...given(those), reason: one.reason }}
                          />
                        </Flex>
                      ),
                    ...ACTIONS,
                  }),
              ]}
              empty=""
              keyOf={(one) => one.reason ?? ""}
              label={TEXT.reasons}
              rows={reasons}
              sorts
            />
          </Box>
        )
      }
    </Answered>
  );
}

const haveIt = (matched: number) =>
  TEXT.someHaveIt(many(matched, TEXT.deadLetter), matched === 1 ? TEXT.has : TEXT.have);

const OfReason = ({ reason, words }: { reason: string; words: string }) => (
  <>
    <Text>{words}</Text>
    <Text css={{ overflowWrap: "anywhere" }} fontWeight="bold" lineClamp={5}>
      {reason}
    </Text>
  </>
);

const ofLetter = columnsOf<Schemas["ListedDeadLetter"]>();

const letterColumns = (nowAt: string) => [
  ofLetter.accessor("dead_at", {
    cell: ({ row: { original: one } }) => <When at={one.dead_at} />,
    header: TEXT.deadSince,
  }),
  ofLetter.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  ofLetter.accessor("key", { header: TEXT.key }),
  ofLetter.accessor("attempt", { header: TEXT.attempts, ...NUMBER }),
  ofLetter.accessor("reason", {
    cell: ({ row: { original: one } }) => <Reason of={one.reason} />,
    header: TEXT.reason,
  }),
  ofLetter.accessor("kept_until", {
    cell: ({ row: { original: one } }) => <When at={one.kept_until} nowAt={nowAt} />,
    header: TEXT.keptUntil,
  }),
  ofLetter.accessor("message_id", {
    cell: ({ row: { original: one } }) => <MessageLink id={one.message_id} />,
    header: TEXT.id,
  }),
];

function List({ broker, mayAct, mayReadBodies, where }: Rights & { broker: string; where: Where }) {
  const after = useAddress().of("after");
  const { group, topic } = where;
  const answer = useBroker(broker, "dead-letters", { ...where, after, redriven: false });
  const total = useBroker(broker, "dead-letters/count", where);
  const letters = answer.data?.dead_letters ?? [];
  const selection = useSelection(letters.map((one) => one.message_id));
  const whose = given({ group, topic });
  const died = letters.filter((one) => selection.has(one.message_id)).map((one) => Date.parse(one.dead_at));
  const selected = { broker, died, done: selection.clear, ids: selection.now, whose };
  return (
    <Answered answer={answer}>
      {({ next, now_at }) => (
        <>
          {mayAct && (
            <SelectionBar
              actions={
                <>
                  <ActOnSelected {...selected} />
                  <ActOnSelected {...selected} isDiscard />
                </>
              }
              actionsOnAll={
                total.data && (
                  <RedriveAll
                    broker={broker}
                    key={where.reason_contains}
                    until={untilOf(where, total.data.now_at)}
                    where={where}
                  />
                )
              }
              selection={selection}
              of={JSON.stringify([broker, where])}
              total={total.data}
            />
          )}
          <Rows
            columns={[mayAct && selector<Schemas["ListedDeadLetter"]>(selection), ...letterColumns(now_at)]}
            empty={next === null ? TEXT.noMatchingDeadLettersOfThis : TEXT.noMatchOnThisPageGo}
            keyOf={(one) => `${one.message_id} ${one.dead_at}`}
            label={TEXT.deadLetters}
            list="dead-letters"
            number={total.data && TEXT.shownOfAll(count(letters.length), counted(total.data))}
            read={{ at: now_at, readAt: answer.readAt }}
            rows={letters}
          />
          <Pages next={next} />
          {mayReadBodies && letters.length > 0 && (
            <Exports
              broker={broker}
              list="dead-letters"
              of={letters}
              where={{ ...where, redriven: false }}
              words={TEXT.allThatMatchTheFilterWith}
            />
          )}
        </>
      )}
    </Answered>
  );
}
