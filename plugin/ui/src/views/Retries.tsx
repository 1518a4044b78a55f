import type { Schemas } from "../api";
import { useAddress } from "../address";
import { Filters } from "../Filters";
import { Answered } from "../Answered";
import { Filter } from "../filterFields";
import { GroupLink, MessageLink, TopicLink } from "../links";
import { MOST_SHOWN, Shown } from "../Pages";
import { Section, When } from "../parts";
import { SelectionBar, selector, useSelection } from "../selecting";
import { Exports } from "../Exports";
import { rowsIn, useBroker } from "../queries";
import { RetryNow } from "../RetryNow";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { TEXT } from "../texts";
import { Reason } from "../Words";

const column = columnsOf<Schemas["WaitingRetry"]>();

const COLUMNS = [
  column.accessor("deliver_at", {
    cell: ({ row: { original: one } }) => <When at={one.deliver_at} />,
    header: TEXT.nextAttempt,
  }),
  column.accessor("attempt", { header: TEXT.attempt, ...NUMBER }),
  column.accessor("group", {
    cell: ({ row: { original: one } }) => <GroupLink group={one.group} topic={one.topic} />,
    header: TEXT.group,
  }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  column.accessor("key", { header: TEXT.key }),
  column.accessor("reason", {
    cell: ({ row: { original: one } }) => <Reason of={one.reason} />,
    header: TEXT.reason,
  }),
  column.accessor("message_id", {
    cell: ({ row: { original: one } }) => <MessageLink id={one.message_id} />,
    enableSorting: false,
    header: TEXT.id,
  }),
];

/** A message may wait in several groups: a row is one of both. */
const nameOf = (one: Schemas["WaitingRetry"]) => `${one.group} ${one.message_id}`;

function List({
  broker,
  mayAct,
  retries,
  where,
}: {
  broker: string;
  mayAct: boolean;
  retries: Schemas["WaitingRetry"][];
  where: { group: string; topic: string };
}) {
  const selection = useSelection(retries.map(nameOf));
  return (
    <>
      {mayAct && (
        <SelectionBar
          actions={
            <RetryNow
              broker={broker}
              done={selection.clear}
              waiting={retries.filter((one) => selection.has(nameOf(one)))}
            />
          }
          actionsOnAll={null}
          selection={selection}
          of={broker}
          total={undefined}
        />
      )}
      <Rows
        columns={[mayAct && selector<Schemas["WaitingRetry"]>(selection, () => true, nameOf), ...COLUMNS]}
        empty={TEXT.noMessagesWaitForARetry}
        keyOf={(one) => `${nameOf(one)} ${one.attempt}`}
        label={TEXT.retries}
        list="retries"
        rows={retries}
        sorts
      />
      <Shown first={TEXT.thatAreNext} of={retries} />
      <Exports broker={broker} list="retries" of={retries} where={where} />
    </>
  );
}

export function Retries({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const address = useAddress();
  const where = { group: address.of("group"), topic: address.of("topic") };
  const answer = useBroker(broker, "retries", where, 5);
  return (
    <Section
      count={rowsIn(answer, (page) => [page.retries.length, page.retries.length < MOST_SHOWN])}
      title={TEXT.messagesThatWaitForTheirNext}
    >
      <Filters names={{ group: TEXT.group, topic: TEXT.topic }}>
        <Filter label={TEXT.group} name="group" placeholder={TEXT.all} />
        <Filter label={TEXT.topic} name="topic" placeholder={TEXT.all} />
      </Filters>
      <Answered answer={answer}>
        {(page) => <List broker={broker} mayAct={mayAct} retries={page.retries} where={where} />}
      </Answered>
    </Section>
  );
}
