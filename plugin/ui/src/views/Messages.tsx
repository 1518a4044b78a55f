import { NativeSelect } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { count } from "../format";
import { SelectionBar, counted, selector, useSelection } from "../selecting";
import { Filters } from "../Filters";
import { Answered } from "../Answered";
import { Filter, InstantFilter, Labelled } from "../filterFields";
import { MessageLink, TopicLink } from "../links";
import { Pages } from "../Pages";
import { Section, Warning, When } from "../parts";
import { State } from "../states";
import { Exports } from "../Exports";
import { useBroker } from "../queries";
import { Rows, columnsOf } from "../Rows";
import { isInstant } from "../zone";
import { MoveMatching, RecallMatching, type Where, criteria } from "./MatchingActions";
import { DeliverNow, Recall, Reschedule } from "./MessageActions";
import { TEXT } from "../texts";

const STATES = ["waiting", "released", "recalled", "moved", "all"];

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
        <Labelled label={TEXT.state}>
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
        </Labelled>
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
    <Answered answer={answer}>
      {(page) => <List broker={broker} mayAct={mayAct} page={page} readAt={answer.readAt} where={where} />}
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
  readAt,
  where,
}: {
  broker: string;
  mayAct: boolean;
  page: Schemas["Messages"];
  readAt: number;
  where: Where;
}) {
  const waiting = page.messages.filter((one) => stateOf(one) === "waiting").map((one) => one.message_id);
  const selection = useSelection(waiting);
  const done = selection.clear;
  const isCounted = ["waiting", "all"].includes(where.state) && where.topic !== "";
  const total = useBroker(broker, "messages/count", criteria(where), undefined, isCounted);
  // All that match are counted, and there are none: no further page has one.
  const isNone =
    where.state === "waiting" && total.data?.exact === true && total.data.messages === 0 && !total.isOld;
  const exactly = (one: Schemas["ListedMessage"]) => one.key === where.key_prefix;
  const found = [...page.messages.filter(exactly), ...page.messages.filter((one) => !exactly(one))];
  return (
    <>
      {mayAct && (
        <SelectionBar
          actions={
            <>
              <Recall broker={broker} done={done} ids={selection.now} />
              <Reschedule broker={broker} done={done} ids={selection.now} />
              <DeliverNow broker={broker} done={done} ids={selection.now} />
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
          selection={selection}
          of={JSON.stringify([broker, where])}
          total={total.data}
        />
      )}
      <Rows
        columns={[
          mayAct && selector<Schemas["ListedMessage"]>(selection, (one) => stateOf(one) === "waiting"),
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
        list="messages"
        number={
          total.data &&
          (where.state === "waiting" ? TEXT.shownOfAll : TEXT.shownOfAllThatMatchWait)(
            count(page.messages.length),
            counted(total.data),
          )
        }
        read={{ at: page.now_at, readAt }}
        rows={found}
      />
      <Pages next={isNone ? null : page.next} />
      <Exports broker={broker} list="messages" of={found} where={where} />
    </>
  );
}
