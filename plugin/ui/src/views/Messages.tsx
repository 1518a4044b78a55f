import { Box, Button, Flex, List as ItemList, NativeSelect, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Failure, type Schemas, post } from "../api";
import { useAddress } from "../address";
import { Asking, type Course } from "../Asking";
import { count, exactInstant, many } from "../format";
import { IN_AN_HOUR, InstantField } from "../InstantField";
import { actOnEach, portions, told } from "../outcomes";
import { Selection, chooser, counted, useChoice } from "../choosing";
import { fewer } from "../fewer";
import { Filters } from "../Filters";
import { Answered } from "../Answered";
import { Filter, InstantFilter } from "../filterFields";
import { MessageLink, TopicLink } from "../links";
import { Pages } from "../Pages";
import { Section, Warning, When } from "../parts";
import { State } from "../states";
import { Exports } from "../Exports";
import { useBroker } from "../queries";
import { Rows, columnsOf } from "../Rows";
import { isInstant, useZone } from "../zone";
import { TEXT } from "../texts";

const AT_ONCE = 200;
/** Up to this many are counted before they are recalled or moved. */
const COUNTED = 1_000_000;
const STATES = ["waiting", "released", "recalled", "moved", "all"];

type Where = Record<"due_from" | "due_until" | "key_prefix" | "state" | "tag" | "topic", string>;

export const stateOf = (one: { moved_to?: string | null; recalled: boolean; released: boolean }) =>
  one.moved_to ? "moved" : one.recalled ? "recalled" : one.released ? "released" : "waiting";

export function Messages({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const address = useAddress();
  const where: Where = {
    due_from: address.of("from"),
    due_until: address.of("until"),
    key_prefix: address.of("key"),
    // Whoever looks for a key wants to know what became of it.
    state: address.of("state") || (address.of("key") === "" ? "waiting" : "all"),
    tag: address.of("tag"),
    topic: address.of("topic"),
  };
  const isUnderstood =
    [where.due_from, where.due_until].every((at) => at === "" || isInstant(at)) &&
    STATES.includes(where.state);
  return (
    <Section title={TEXT.messages}>
      <Filters
        names={{
          topic: TEXT.topic,
          key: TEXT.keyBeginsWith,
          tag: TEXT.tag,
          state: TEXT.state,
          from: TEXT.dueFrom,
          until: TEXT.dueBefore,
        }}
      >
        <Filter label={TEXT.topic} name="topic" placeholder={TEXT.all} />
        <Filter label={TEXT.keyBeginsWith} name="key" />
        <Filter label={TEXT.tag} name="tag" width="8rem" />
        <Box as="label" fontSize="xs">
          <Text as="span" color="fg.muted" display="block">
            {TEXT.state}
          </Text>
          <NativeSelect.Root size="sm" width="8rem">
            <NativeSelect.Field
              name="state"
              onChange={(event) => address.set({ after: null, state: event.target.value })}
              value={where.state}
            >
              {!STATES.includes(where.state) && <option>{where.state}</option>}
              {STATES.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </NativeSelect.Field>
            <NativeSelect.Indicator aria-hidden="true" />
          </NativeSelect.Root>
        </Box>
        <InstantFilter label={TEXT.dueFrom} name="from" />
        <InstantFilter label={TEXT.dueBefore} name="until" />
      </Filters>
      {isUnderstood ? (
        <Listed broker={broker} mayAct={mayAct} where={where} />
      ) : (
        <Warning>{TEXT.theFilterIsNotUnderstoodSo}</Warning>
      )}
    </Section>
  );
}

function Listed({ broker, mayAct, where }: { broker: string; mayAct: boolean; where: Where }) {
  const after = useAddress().of("after");
  const answer = useBroker(broker, "messages", { ...where, after });
  return (
    <Answered answer={answer} asOf={(page) => page.now_at}>
      {(page) => <List broker={broker} mayAct={mayAct} page={page} where={where} />}
    </Answered>
  );
}

const column = columnsOf<Schemas["ListedMessage"]>();

const columns = (nowAt: string) => [
  column.accessor("deliver_at", {
    cell: ({ row: { original: one } }) => <When at={one.deliver_at} nowAt={nowAt} />,
    header: TEXT.due,
  }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  column.accessor("key", { header: TEXT.key }),
  column.accessor("tag", { header: TEXT.tag }),
  column.display({
    cell: ({ row: { original: one } }) => (
      <>
        <State of={one.replaced_by ? "replaced" : stateOf(one)} />
        {(one.moved_to ?? one.replaced_by) && (
          <>
            {TEXT.toAmong}
            <MessageLink id={one.moved_to ?? one.replaced_by ?? ""} />
          </>
        )}
      </>
    ),
    header: TEXT.state,
    id: "state",
  }),
  column.accessor("born_at", {
    cell: ({ row: { original: one } }) => <When at={one.born_at} />,
    header: TEXT.sent,
  }),
  column.accessor("message_id", {
    cell: ({ row: { original: one } }) => <MessageLink id={one.message_id} />,
    header: TEXT.id,
  }),
];

function List({
  broker,
  mayAct,
  page,
  where,
}: {
  broker: string;
  mayAct: boolean;
  page: Schemas["Messages"];
  where: Where;
}) {
  const waiting = page.messages.filter((one) => stateOf(one) === "waiting").map((one) => one.message_id);
  const choice = useChoice(waiting);
  const done = choice.clear;
  const isCounted = ["waiting", "all"].includes(where.state) && where.topic !== "";
  const total = useBroker(broker, "messages/count", criteria(where), undefined, isCounted);
  // All that match are counted, and there are none: no further page has one.
  const isNone =
    where.state === "waiting" && total.data?.exact === true && total.data.messages === 0 && !total.isOld;
  const exactly = (one: Schemas["ListedMessage"]) => one.key === where.key_prefix;
  const found = [...page.messages.filter(exactly), ...page.messages.filter((one) => !exactly(one))];
  return (
    <>
      {total.data && (
        <Text fontSize="sm" mb={2}>
          {where.state === "waiting"
            ? TEXT.shownOfAll(count(page.messages.length), counted(total.data))
            : TEXT.shownOfAllThatMatchWait(count(page.messages.length), counted(total.data))}
        </Text>
      )}
      {mayAct && (
        <Selection
          actions={
            <>
              <Recall broker={broker} done={done} ids={choice.now} />
              <Reschedule broker={broker} done={done} ids={choice.now} />
              <DeliverNow broker={broker} done={done} ids={choice.now} />
            </>
          }
          actionsOnAll={
            isCounted && (
              <>
                <RecallMatching broker={broker} where={where} />
                <MoveMatching action={TEXT.rescheduleAll} broker={broker} where={where} />
                <MoveMatching action={TEXT.deliverAllNow} broker={broker} now where={where} />
              </>
            )
          }
          choice={choice}
          of={JSON.stringify([broker, where])}
          total={total.data}
        />
      )}
      <Rows
        columns={[
          mayAct && chooser<Schemas["ListedMessage"]>(choice, (one) => stateOf(one) === "waiting"),
          where.key_prefix !== "" &&
            column.display({
              cell: ({ row: { original: one } }) => (exactly(one) ? TEXT.exactlyIt : TEXT.longer),
              header: TEXT.match,
              id: "match",
            }),
          ...columns(page.now_at),
        ]}
        empty={page.next && !isNone ? TEXT.noMatchOnThisPageGo : TEXT.noMessagesMatch}
        keyOf={(one) => one.message_id}
        label={TEXT.messages}
        rows={found}
      />
      <Pages next={isNone ? null : page.next} />
      <Exports broker={broker} list="messages" of={found} where={where} />
    </>
  );
}

type Some = { broker: string; done?: () => void; ids: string[] };

async function each(
  broker: string,
  path: string,
  ids: string[],
  more: object,
  course: Course,
): Promise<string> {
  const parts = [...portions(ids, AT_ONCE)].map((some) => ({
    act: async () => (await post<Schemas["Outcomes"]>(broker, path, { message_ids: some, ...more })).outcomes,
    ids: some,
  }));
  const outcomes = await actOnEach(
    parts,
    (done) => ids.length > AT_ONCE && course.tell(TEXT.someOfAll(count(done), count(ids.length))),
    course.isStopped,
  );
  return told(outcomes);
}

export const Recall = ({ broker, done, ids }: Some) => (
  <Asking
    act={(course) => each(broker, "messages/recall", ids, {}, course)}
    action={TEXT.recall}
    disabled={ids.length === 0}
    {...(done ? { done } : {})}
    serious
  >
    <Text>{TEXT.takesBackNeverToBeDelivered(many(ids.length, TEXT.nounMessage))}</Text>
  </Asking>
);

export function Reschedule({ broker, done, ids }: Some) {
  const [to, setTo] = useState<object>(IN_AN_HOUR);
  return (
    <Asking
      act={(course) => each(broker, "messages/reschedule", ids, to, course)}
      action={TEXT.reschedule}
      disabled={ids.length === 0}
      {...(done ? { done } : {})}
    >
      <Text mb={3}>{TEXT.deliversAtAnotherInstantWithAnother(many(ids.length, TEXT.nounMessage))}</Text>
      <InstantField choose={setTo} />
    </Asking>
  );
}

export const DeliverNow = ({ broker, done, ids }: Some) => (
  <Asking
    act={(course) => each(broker, "messages/reschedule", ids, { delay_seconds: 0 }, course)}
    action={TEXT.deliverNow}
    disabled={ids.length === 0}
    {...(done ? { done } : {})}
  >
    <Text>{TEXT.deliversAtOnceWithAnotherId(many(ids.length, TEXT.nounMessage))}</Text>
  </Asking>
);

/** What the filter says, for those who are about to act on all that match. */
function InWords({ where }: { where: Where }) {
  const zone = useZone();
  const said = [
    TEXT.onTopic(where.topic),
    where.key_prefix && TEXT.withAKeyThatBeginsWith(where.key_prefix),
    where.tag && TEXT.withTheTag(where.tag),
    where.due_from && TEXT.dueFromInOn(exactInstant(where.due_from, zone), zone),
    where.due_until && TEXT.dueBeforeIn(exactInstant(where.due_until, zone), zone),
  ].filter(Boolean);
  return (
    <ItemList.Root mb={3} ml={5}>
      {said.map((one) => (
        <ItemList.Item key={one}>{one}</ItemList.Item>
      ))}
    </ItemList.Root>
  );
}

const criteria = (where: Where) =>
  Object.fromEntries(Object.entries(where).filter(([name, value]) => name !== "state" && value !== ""));

type Matching = { broker: string; where: Where };

/** The numbers of messages found, and their outcomes, in the portions so far. */
type Sums = { late: number; matched: number; recalled: number };

function RecallMatching({ broker, where }: Matching) {
  const all = async (dryRun: boolean, after: (sums: Sums) => boolean): Promise<Sums> => {
    const sums = { late: 0, matched: 0, recalled: 0 };
    let place: object = {};
    for (;;) {
      const { due_from, next, ...found } = await post<Schemas["RecalledPortion"]>(
        broker,
        "messages/recall-matching",
        { ...criteria(where), ...place, dry_run: dryRun },
      );
      sums.late += found.already_released;
      sums.matched += found.matched;
      sums.recalled += found.recalled;
      if (!after(sums) || next === null) return sums;
      place = { after: next, due_from };
    }
  };
  return (
    <Asking
      act={async ({ isStopped, previewed, tell }) => {
        let sums: Sums = { late: 0, matched: 0, recalled: 0 };
        let ended = "";
        try {
          await all(false, (so_far) => {
            sums = so_far;
            tell(TEXT.recalledSoFar(count(sums.recalled)));
            return !isStopped();
          });
          if (isStopped()) ended = TEXT.stoppedTheRestAreStillWaiting;
        } catch (error) {
          if (sums.matched === 0 || !(error instanceof Failure)) throw error;
          ended = TEXT.theRestMayStillWaitRecall(error.message);
        }
        return [
          TEXT.someRecalledNeverDelivered(count(sums.recalled)),
          ...(sums.late > 0 ? [TEXT.someAlreadyReleased(count(sums.late))] : []),
          ...(ended ? [ended] : await fewer({ broker, topic: where.topic }, previewed, sums.matched)),
        ].join("\n");
      }}
      action={TEXT.recallAll}
      preview={async (isWanted) => {
        let isAll = true;
        const { late, matched } = await all(true, (sums) => {
          isAll = sums.matched < COUNTED;
          return isAll && isWanted();
        });
        const waiting = matched - late;
        const words = `${isAll ? "" : TEXT.atLeastAtTheBeginning}${many(waiting, TEXT.nounMessage)}`;
        return {
          number: waiting,
          words: TEXT.someWaitNow(words, waiting === 1 ? TEXT.waitsAndMatches : TEXT.waitAndMatch),
        };
      }}
      serious
    >
      <Text>{TEXT.everyWaitingMessageIsTakenBack}</Text>
      <InWords where={where} />
      <Text>{TEXT.thisCannotBeUndone}</Text>
    </Asking>
  );
}

/** The place where a move of all that match was broken off, and the instant that it moves to. */
type Rest = { after: string; deliver_at: string; of: string };

/** Moves all that match, to an instant that the user enters or to now. One that was stopped goes on where it was, and
 * those that it has moved are not moved again. */
function MoveMatching({ action, broker, now = false, where }: Matching & { action: string; now?: boolean }) {
  const zone = useZone();
  const [to, setTo] = useState<object>(IN_AN_HOUR);
  const [stopped, setStopped] = useState<Rest>();
  const of = JSON.stringify([broker, where]);
  const rest = stopped?.of === of ? stopped : undefined;
  const target = now ? { delay_seconds: 0 } : to;
  const all = async (
    dryRun: boolean,
    after: (sums: { matched: number; moved: number }, rest?: Rest) => boolean,
  ) => {
    const sums = { matched: 0, moved: 0 };
    let place: object = rest ? { after: rest.after, deliver_at: rest.deliver_at } : target;
    for (;;) {
      const { deliver_at, matched, moved, next } = await post<Schemas["MovedPortion"]>(
        broker,
        "messages/reschedule-matching",
        { ...criteria(where), ...place, dry_run: dryRun },
      );
      sums.matched += matched;
      sums.moved += moved;
      if (!after(sums, next === null ? undefined : { after: next, deliver_at, of }) || next === null)
        return sums;
      place = { after: next, deliver_at };
    }
  };
  return (
    <Asking
      act={async ({ isStopped, previewed, tell }) => {
        let sums = { matched: 0, moved: 0 };
        let left: Rest | undefined;
        let ended = "";
        try {
          await all(false, (soFar, following) => {
            sums = { ...soFar };
            left = following;
            tell(TEXT.rescheduledSoFar(count(sums.moved)));
            return !isStopped();
          });
          if (left) ended = TEXT.stoppedTheRestAreUnchangedGoes(action);
        } catch (error) {
          if (sums.matched === 0 || !(error instanceof Failure)) throw error;
          ended = TEXT.goesOnWithTheRest(error.message, action);
        }
        setStopped(left);
        const others = sums.matched - sums.moved;
        return [
          TEXT.someRescheduled(count(sums.moved)),
          ...(others > 0 ? [TEXT.notReleasedRecalledOrMovedBy(count(others))] : []),
          ...(ended ? [ended] : await fewer({ broker, topic: where.topic }, previewed, sums.matched)),
        ].join("\n");
      }}
      action={action}
      preview={async (isWanted) => {
        let isAll = true;
        const { matched } = await all(true, (sums) => {
          isAll = sums.matched < COUNTED;
          return isAll && isWanted();
        });
        const words = `${isAll ? "" : TEXT.atLeastAtTheBeginning}${many(matched, TEXT.nounMessage)}`;
        const state =
          matched === 1
            ? rest
              ? TEXT.isLeft
              : TEXT.waitsAndMatchesNow
            : rest
              ? TEXT.areLeft
              : TEXT.waitAndMatchNow;
        return { number: matched, words: `${words} ${state}.` };
      }}
      previewOf={JSON.stringify([rest, target])}
    >
      <Text>
        {TEXT.everyWaitingMessageIsDelivered}
        {now ? TEXT.atOnce : TEXT.atAnotherInstant}
        {TEXT.thatIs}
      </Text>
      <InWords where={where} />
      <Text mb={3}>{TEXT.theirIdsChange}</Text>
      {rest ? (
        <Flex align="center" gap={2} role="note">
          <Text>
            {TEXT.itWasBrokenOffItGoes}
            {now ? "" : TEXT.toAnInstant(exactInstant(rest.deliver_at, zone), zone)}.
          </Text>
          <Button onClick={() => setStopped(undefined)} size="xs" variant="outline">
            {TEXT.beginAnew}
          </Button>
        </Flex>
      ) : (
        !now && <InstantField choose={setTo} />
      )}
    </Asking>
  );
}
