import { Box, Button, Flex, Input, Text } from "@chakra-ui/react";
import { useRef, useState } from "react";
import { Failure, type Schemas, addressOf, ofBroker, post } from "../api";
import { useAddress } from "../address";
import { Asking, type Course } from "../Asking";
import { count, exactInstant, many } from "../format";
import { Selection, chooser, counted, useChoice } from "../choosing";
import { Filters } from "../Filters";
import {
  Answered,
  Filter,
  InstantFilter,
  MessageLink,
  PageLink,
  Pages,
  Section,
  Shown,
  Warning,
  When,
} from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { isInstant, useZone } from "../zone";
import { GroupsLeftOut } from "./Groups";
import { TEXT } from "../texts";

const AT_ONCE = 500;
const FORMATS = [
  ["csv", TEXT.csv],
  ["jsonl", TEXT.jsonLines],
];

type Rights = { mayAct: boolean; mayReadBodies: boolean };

/** The criteria of the list, under the names that the API has for them. */
type Where = Record<
  "dead_from" | "dead_until" | "group" | "key_prefix" | "reason_contains" | "reason_lacks" | "topic",
  string
>;

/** Acts on a portion of dead letters, or counts them. */
const act = (broker: string, action: "discard" | "redrive", asked: object) =>
  post<Schemas["DeadLetterPortion"]>(ofBroker(broker, `dead-letters/${action}`), asked);

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
      <Filters names={["group", "topic", "key", "reason", "lacks", "from", "until"]}>
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
  ofGroup.accessor("topic", { header: TEXT.topic }),
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
    <Answered answer={answer} asOf={(page) => page.now_at}>
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
          {one.reason}
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

/** When the question of an action on all ends: what dies after the list was read, redriven ones among them, is no part
 * of it, however long the question stands and the action lasts. */
const untilOf = ({ dead_until }: Where, nowAt: string) =>
  dead_until !== "" && Date.parse(dead_until) < Date.parse(nowAt) ? dead_until : nowAt;

/** Those of the criteria that are set. */
const given = (where: Partial<Where>) =>
  Object.fromEntries(Object.entries(where).filter(([, value]) => value));

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
                          <OnAll
                            broker={broker}
                            isRedrive
                            question={question(TEXT.sentAgainEachOnce)}
                            until={untilOf(where, now_at)}
                            which={{ ...given(those), reason: one.reason }}
                          />
                          <OnAll
                            broker={broker}
                            isRedrive={false}
                            question={question(TEXT.discardedAndNeverSentAgain)}
                            until={untilOf(where, now_at)}
                            which={{ ...given(those), reason: one.reason }}
                          />
                        </Flex>
                      ),
                    enableSorting: false,
                    header: TEXT.actions,
                    id: "actions",
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

/** Acts on all dead letters of one reason, by portions. */
function OnAll({
  broker,
  isRedrive,
  question,
  until,
  which,
}: {
  broker: string;
  /** Otherwise they are discarded. */
  isRedrive: boolean;
  question: string;
  until: string;
  which: { reason: string };
}) {
  const action = isRedrive ? TEXT.redrive : TEXT.discard;
  const words = isRedrive ? TEXT.sentAgain : TEXT.stateDiscarded;
  // That of the question: the list behind may be read anew while it stands.
  const asked = useRef(until);
  const ask = (more: object) =>
    act(broker, isRedrive ? "redrive" : "discard", { ...which, ...more, dead_until: asked.current });
  return (
    <Asking
      act={async ({ isStopped, tell }) => {
        let after: string | null = null;
        let sum = 0;
        try {
          for (;;) {
            const { done, next } = await ask({ after, dry_run: false, max_messages: AT_ONCE });
            sum += done;
            if (next === null) return `${count(sum)} ${words}.`;
            after = next;
            tell(`${count(sum)} ${words} …`);
            if (isStopped()) return TEXT.stoppedAfterSome(count(sum), words);
          }
        } catch (error) {
          if (sum === 0 || !(error instanceof Failure)) throw error;
          return TEXT.againForTheRest(count(sum), words, error.message, action);
        }
      }}
      action={action}
      quiet
      preview={async () => {
        asked.current = until;
        const { matched } = await ask({ dry_run: true });
        return {
          number: matched,
          words: TEXT.someHaveIt(many(matched, TEXT.deadLetter), matched === 1 ? TEXT.has : TEXT.have),
        };
      }}
      serious={!isRedrive}
    >
      <Text>{question}</Text>
      <Text fontWeight="bold" lineClamp={5}>
        {which.reason}
      </Text>
      {!isRedrive && <Text>{TEXT.thisCannotBeUndone}</Text>}
    </Asking>
  );
}

const ofLetter = columnsOf<Schemas["ListedDeadLetter"]>();

const letterColumns = (nowAt: string) => [
  ofLetter.accessor("dead_at", {
    cell: ({ row: { original: one } }) => <When at={one.dead_at} />,
    header: TEXT.deadSince,
  }),
  ofLetter.accessor("topic", { header: TEXT.topic }),
  ofLetter.accessor("key", { header: TEXT.key }),
  ofLetter.accessor("attempt", { header: TEXT.attempts, ...NUMBER }),
  ofLetter.accessor("reason", {
    cell: ({ row: { original: one } }) => (
      <Text lineClamp={3} title={one.reason ?? ""}>
        {one.reason ?? ""}
      </Text>
    ),
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
  const choice = useChoice(letters.map((one) => one.message_id));
  const whose = given({ group, topic });
  // No other time than that of the chosen ones is searched for their ids, however many dead letters there are.
  const those = () => {
    const died = letters.filter((one) => choice.has(one.message_id)).map((one) => Date.parse(one.dead_at));
    const chosen = { ...whose, dry_run: false, message_ids: choice.now };
    // A list that was read anew meanwhile may show none of them.
    if (died.length === 0) return chosen;
    return {
      ...chosen,
      dead_from: new Date(Math.min(...died)).toISOString(),
      // Instants here have milliseconds, and those of the broker microseconds.
      dead_until: new Date(Math.max(...died) + 1).toISOString(),
    };
  };
  const ask = (more: object) => act(broker, "redrive", { ...whose, ...more });
  const done = choice.clear;
  return (
    <Answered answer={answer} asOf={(page) => page.now_at}>
      {({ next, now_at }) => (
        <>
          {mayReadBodies && letters.length > 0 && (
            <Flex align="center" gap={2} mb={3} wrap="wrap">
              <Text fontSize="sm">{TEXT.allThatMatchTheFilterWith}</Text>
              {FORMATS.map(([format, words]) => (
                <Button asChild key={format} size="xs" variant="outline">
                  <a
                    download
                    href={
                      addressOf(ofBroker(broker, "dead-letters/export"), {
                        ...where,
                        format,
                        redriven: false,
                      }).href
                    }
                  >
                    {TEXT.exportAs(words ?? "")}
                  </a>
                </Button>
              ))}
            </Flex>
          )}
          {total.data && (
            <Text fontSize="sm" mb={2}>
              {TEXT.shownOfAll(count(letters.length), counted(total.data))}
            </Text>
          )}
          {mayAct && (
            <Selection
              actions={
                <>
                  <Asking
                    act={async () => {
                      const redriven = await ask(those());
                      return TEXT.sentAgainTheyComeToThe(count(redriven.done));
                    }}
                    action={TEXT.redrive}
                    done={done}
                  >
                    <Text>
                      {TEXT.sendsToAgainEachWithIts(many(choice.now.length, TEXT.deadLetter), group)}
                    </Text>
                  </Asking>
                  <Asking
                    act={async () => {
                      const discarded = await act(broker, "discard", those());
                      return TEXT.discarded(count(discarded.done));
                    }}
                    action={TEXT.discard}
                    done={done}
                    serious
                  >
                    <Text>
                      {TEXT.discardsOfNeverToBeSent(many(choice.now.length, TEXT.deadLetter), group)}
                    </Text>
                  </Asking>
                </>
              }
              actionsOnAll={
                total.data && (
                  <RedriveAll
                    ask={(more) => ask({ ...given({ ...where, reason_contains: "" }), ...more })}
                    key={where.reason_contains}
                    until={untilOf(where, total.data.now_at)}
                    where={where}
                  />
                )
              }
              choice={choice}
              of={JSON.stringify([broker, where])}
              total={total.data}
            />
          )}
          <Rows
            columns={[mayAct && chooser<Schemas["ListedDeadLetter"]>(choice), ...letterColumns(now_at)]}
            empty={next === null ? TEXT.noMatchingDeadLettersOfThis : TEXT.noMatchOnThisPageGo}
            keyOf={(one) => `${one.message_id} ${one.dead_at}`}
            label={TEXT.deadLetters}
            rows={letters}
          />
          <Pages next={next} />
        </>
      )}
    </Answered>
  );
}

const wait = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

/** Sends one dead letter again, from the page of its message. */
export const RedriveOne = ({ broker, group, id }: { broker: string; group: string; id: string }) => (
  <Asking
    act={async () => {
      const { done } = await act(broker, "redrive", { dry_run: false, group, message_ids: [id] });
      return done > 0 ? TEXT.sentAgainItComesToThe : TEXT.nothingToDoItWasSent;
    }}
    action={TEXT.redrive}
  >
    <Text>{TEXT.theDeadLetterIsSentTo(group)}</Text>
  </Asking>
);

function RedriveAll({
  ask,
  until,
  where,
}: {
  ask: (more: object) => Promise<Schemas["DeadLetterPortion"]>;
  until: string;
  /** The filter of the list; its reason is the initial value. */
  where: Where;
}) {
  const { dead_from, dead_until, group, key_prefix, reason_lacks, topic } = where;
  const zone = useZone();
  // That of the question: the list behind may be read anew while it stands.
  const asked = useRef(until);
  const [reason, setReason] = useState(where.reason_contains);
  const said = [
    topic && TEXT.onTopic(topic),
    key_prefix && TEXT.whoseKeyBeginsWith(key_prefix),
    reason_lacks && TEXT.whoseReasonDoesNotContain(reason_lacks),
    dead_from && TEXT.deadFromInOn(exactInstant(dead_from, zone), zone),
    dead_until && TEXT.deadBeforeIn(exactInstant(dead_until, zone), zone),
  ].filter(Boolean);
  const [rate, setRate] = useState("");
  const which = reason === "" ? {} : { reason_contains: reason };
  const all = async ({ isStopped, tell }: Course) => {
    // A rate is a number in each second. The page sends one request after another, and each dead letter is sent once.
    const perSecond = rate === "" ? Infinity : Number(rate);
    if (!(perSecond > 0)) {
      throw new Failure(0, "NoRate", TEXT.theRateHasToBeMore);
    }
    const portion = Math.max(1, Math.min(Math.floor(perSecond), AT_ONCE));
    let after: string | null = null;
    let sent = 0;
    let ended: string = TEXT.theyComeToTheGroupAt;
    try {
      for (;;) {
        const more = { ...which, after, dead_until: asked.current, dry_run: false, max_messages: portion };
        const { done, next } = await ask(more);
        sent += done;
        if (next === null) break;
        after = next;
        tell(TEXT.sentAgainSoFar(count(sent)));
        const goesOnAt = Date.now() + (portion / perSecond) * 1000;
        while (Date.now() < goesOnAt && !isStopped()) await wait(Math.min(0.2, portion / perSecond));
        if (isStopped()) {
          ended = TEXT.stoppedTheOthersAreUnchanged;
          break;
        }
      }
    } catch (error) {
      if (sent === 0 || !(error instanceof Failure)) throw error;
      ended = TEXT.redriveAgainForTheRest(error.message);
    }
    return TEXT.someSentAgain(count(sent), ended);
  };
  return (
    <Asking
      act={all}
      action={TEXT.redriveAll}
      preview={async () => {
        asked.current = until;
        const { matched } = await ask({ ...which, dead_until: until, dry_run: true });
        const those = reason === "" && said.length === 0 ? "" : TEXT.thatMatch;
        return { number: matched, words: TEXT.toBeSentAgain(many(matched, TEXT.deadLetter), those) };
      }}
      previewOf={reason}
    >
      <Text mb={3}>
        {TEXT.allDeadLettersOf}
        {group}
        {said.map((one) => `, ${one}`)}
        {said.length > 0 && ","}
        {TEXT.areSentAgainEachOnce}
      </Text>
      <Text as="label" display="block" fontSize="sm" mb={2}>
        {TEXT.onlyThoseWhoseReasonContains}
        <Input name="reason" onChange={(event) => setReason(event.target.value)} value={reason} />
      </Text>
      <Text as="label" display="block" fontSize="sm">
        {TEXT.atMostThisManyASecond}
        <Input
          min={0.01}
          name="rate"
          onChange={(event) => setRate(event.target.value)}
          step="any"
          type="number"
          value={rate}
        />
      </Text>
    </Asking>
  );
}
