import { Box, Button, Flex, List as ItemList, NativeSelect, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Failure, type Schemas, ofBroker, post } from "../api";
import { useAddress } from "../address";
import { Asking, type Course } from "../Asking";
import { count, exactInstant, many } from "../format";
import { InstantField } from "../InstantField";
import { actOnEach, told } from "../outcomes";
import { Selection, chooser, counted, useChoice } from "../choosing";
import { Filters } from "../Filters";
import { Answered, Filter, InstantFilter, MessageLink, Pages, Section, State, Warning, When } from "../parts";
import { useBroker } from "../queries";
import { Rows, columnsOf } from "../Rows";
import { isInstant, useZone } from "../zone";

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
    <Section title="Messages">
      <Filters names={["topic", "key", "tag", "state", "from", "until"]}>
        <Filter label="Topic" name="topic" placeholder="all" />
        <Filter label="Key begins with" name="key" />
        <Filter label="Tag" name="tag" width="8rem" />
        <Box as="label" fontSize="xs">
          <Text as="span" color="fg.muted" display="block">
            State
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
        <InstantFilter label="Due from" name="from" />
        <InstantFilter label="Due before" name="until" />
        <OpenById />
      </Filters>
      {isUnderstood ? (
        <Listed broker={broker} mayAct={mayAct} where={where} />
      ) : (
        <Warning>The filter is not understood, so nothing is listed. Correct it first.</Warning>
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

/** A pasted id opens its message at once. */
function OpenById() {
  const address = useAddress();
  return (
    <Box as="label" fontSize="xs">
      <Text as="span" color="fg.muted" display="block">
        Message id
      </Text>
      <Box
        asChild
        bg="bg"
        borderColor="border"
        borderRadius="sm"
        borderWidth="1px"
        fontFamily="mono"
        fontSize="sm"
        h={9}
        px={2}
        w="12rem"
      >
        <input
          name="id"
          onChange={(event) => {
            const id = event.target.value.trim();
            if (/^[0-9a-f]{44}$/.test(id)) address.open("message", { id });
          }}
        />
      </Box>
    </Box>
  );
}

const column = columnsOf<Schemas["ListedMessage"]>();

const columns = (nowAt: string) => [
  column.accessor("deliver_at", {
    cell: ({ row: { original: one } }) => <When at={one.deliver_at} nowAt={nowAt} />,
    header: "Due",
  }),
  column.accessor("topic", { header: "Topic" }),
  column.accessor("key", { header: "Key" }),
  column.accessor("tag", { header: "Tag" }),
  column.display({
    cell: ({ row: { original: one } }) => (
      <>
        <State of={stateOf(one)} />
        {one.moved_to && (
          <>
            {" to "}
            <MessageLink id={one.moved_to} />
          </>
        )}
      </>
    ),
    header: "State",
    id: "state",
  }),
  column.accessor("born_at", {
    cell: ({ row: { original: one } }) => <When at={one.born_at} />,
    header: "Sent",
  }),
  column.accessor("message_id", {
    cell: ({ row: { original: one } }) => <MessageLink id={one.message_id} />,
    header: "Id",
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
  return (
    <>
      {total.data && (
        <Text fontSize="sm" mb={2}>
          {where.state === "waiting"
            ? `${count(page.messages.length)} of ${counted(total.data)}`
            : `${count(page.messages.length)} shown; of all that match, ${counted(total.data)} wait`}
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
                <MoveMatching action="Reschedule all" broker={broker} where={where} />
                <MoveMatching action="Deliver all now" broker={broker} now where={where} />
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
          ...columns(page.now_at),
        ]}
        empty={page.next ? "No match on this page. Go on to the next." : "No messages match."}
        keyOf={(one) => one.message_id}
        label="Messages"
        rows={page.messages}
      />
      <Pages next={page.next} />
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
  const outcomes = await actOnEach(
    ids,
    AT_ONCE,
    async (portion) =>
      (await post<Schemas["Outcomes"]>(ofBroker(broker, path), { message_ids: portion, ...more })).outcomes,
    (done) => ids.length > AT_ONCE && course.tell(`${count(done)} of ${count(ids.length)} …`),
    course.isStopped,
  );
  return told(outcomes);
}

export const Recall = ({ broker, done, ids }: Some) => (
  <Asking
    act={(course) => each(broker, "messages/recall", ids, {}, course)}
    action="Recall"
    disabled={ids.length === 0}
    {...(done ? { done } : {})}
    serious
  >
    <Text>Takes back {many(ids.length, "message")}, never to be delivered. This cannot be undone.</Text>
  </Asking>
);

export function Reschedule({ broker, done, ids }: Some) {
  const [to, setTo] = useState<object>();
  return (
    <Asking
      act={(course) => each(broker, "messages/reschedule", ids, to ?? { delay_seconds: 3600 }, course)}
      action="Reschedule"
      disabled={ids.length === 0}
      {...(done ? { done } : {})}
    >
      <Text mb={3}>Delivers {many(ids.length, "message")} at another instant, with another id.</Text>
      <InstantField choose={setTo} />
    </Asking>
  );
}

export const DeliverNow = ({ broker, done, ids }: Some) => (
  <Asking
    act={(course) => each(broker, "messages/reschedule", ids, { delay_seconds: 0 }, course)}
    action="Deliver now"
    disabled={ids.length === 0}
    {...(done ? { done } : {})}
  >
    <Text>Delivers {many(ids.length, "message")} at once, with another id.</Text>
  </Asking>
);

/** What the filter says, for those who are about to act on all that match. */
function InWords({ where }: { where: Where }) {
  const zone = useZone();
  const said = [
    `on topic ${where.topic}`,
    where.key_prefix && `with a key that begins with ${where.key_prefix}`,
    where.tag && `with the tag ${where.tag}`,
    where.due_from && `due from ${exactInstant(where.due_from, zone)} in ${zone} on`,
    where.due_until && `due before ${exactInstant(where.due_until, zone)} in ${zone}`,
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
        ofBroker(broker, "messages/recall-matching"),
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
      act={async ({ isStopped, tell }) => {
        let sums: Sums = { late: 0, matched: 0, recalled: 0 };
        let ended = "";
        try {
          await all(false, (so_far) => {
            sums = so_far;
            tell(`${count(sums.recalled)} recalled …`);
            return !isStopped();
          });
          if (isStopped()) ended = "Stopped: the rest are still waiting.";
        } catch (error) {
          if (sums.matched === 0 || !(error instanceof Failure)) throw error;
          ended = `${error.message} The rest may still wait: recall again.`;
        }
        return [
          `${count(sums.recalled)} recalled: never delivered`,
          ...(sums.late > 0 ? [`${count(sums.late)} already released: it was too late`] : []),
          ...(ended ? [ended] : []),
        ].join("\n");
      }}
      action="Recall all"
      preview={async (isWanted) => {
        let isAll = true;
        const { late, matched } = await all(true, (sums) => {
          isAll = sums.matched < COUNTED;
          return isAll && isWanted();
        });
        const waiting = matched - late;
        const words = `${isAll ? "" : "At least "}${many(waiting, "message")}`;
        return {
          number: waiting,
          words: `${words} ${waiting === 1 ? "waits and matches" : "wait and match"} now.`,
        };
      }}
      serious
    >
      <Text>Every waiting message is taken back that is</Text>
      <InWords where={where} />
      <Text>This cannot be undone.</Text>
    </Asking>
  );
}

/** The place where a move of all that match was broken off, and the instant that it moves to. */
type Rest = { after: string; deliver_at: string; of: string };

/** Moves all that match, to an instant that the user enters or to now. One that was stopped goes on where it was, and
 * those that it has moved are not moved again. */
function MoveMatching({ action, broker, now = false, where }: Matching & { action: string; now?: boolean }) {
  const zone = useZone();
  const [to, setTo] = useState<object>();
  const [stopped, setStopped] = useState<Rest>();
  const of = JSON.stringify([broker, where]);
  const rest = stopped?.of === of ? stopped : undefined;
  const target = now ? { delay_seconds: 0 } : (to ?? { delay_seconds: 3600 });
  const all = async (
    dryRun: boolean,
    after: (sums: { matched: number; moved: number }, rest?: Rest) => boolean,
  ) => {
    const sums = { matched: 0, moved: 0 };
    let place: object = rest ? { after: rest.after, deliver_at: rest.deliver_at } : target;
    for (;;) {
      const { deliver_at, matched, moved, next } = await post<Schemas["MovedPortion"]>(
        ofBroker(broker, "messages/reschedule-matching"),
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
      act={async ({ isStopped, tell }) => {
        let sums = { matched: 0, moved: 0 };
        let left: Rest | undefined;
        let ended = "";
        try {
          await all(false, (soFar, following) => {
            sums = { ...soFar };
            left = following;
            tell(`${count(sums.moved)} rescheduled …`);
            return !isStopped();
          });
          if (left) ended = `Stopped: the rest are unchanged. “${action}” goes on with them.`;
        } catch (error) {
          if (sums.matched === 0 || !(error instanceof Failure)) throw error;
          ended = `${error.message} “${action}” goes on with the rest.`;
        }
        setStopped(left);
        const others = sums.matched - sums.moved;
        return [
          `${count(sums.moved)} rescheduled`,
          ...(others > 0 ? [`${count(others)} not: released, recalled or moved by others just now`] : []),
          ...(ended ? [ended] : []),
        ].join("\n");
      }}
      action={action}
      preview={async (isWanted) => {
        let isAll = true;
        const { matched } = await all(true, (sums) => {
          isAll = sums.matched < COUNTED;
          return isAll && isWanted();
        });
        const words = `${isAll ? "" : "At least "}${many(matched, "message")}`;
        const state =
          matched === 1
            ? rest
              ? "is left"
              : "waits and matches now"
            : rest
              ? "are left"
              : "wait and match now";
        return { number: matched, words: `${words} ${state}.` };
      }}
      previewOf={JSON.stringify([rest, target])}
    >
      <Text>Every waiting message is delivered {now ? "at once" : "at another instant"} that is</Text>
      <InWords where={where} />
      <Text mb={3}>Their ids change.</Text>
      {rest ? (
        <Flex align="center" gap={2} role="note">
          <Text>
            It was broken off. It goes on with the rest
            {now ? "" : `, to ${exactInstant(rest.deliver_at, zone)} in ${zone}`}.
          </Text>
          <Button onClick={() => setStopped(undefined)} size="xs" variant="outline">
            Begin anew
          </Button>
        </Flex>
      ) : (
        !now && <InstantField choose={setTo} />
      )}
    </Asking>
  );
}
