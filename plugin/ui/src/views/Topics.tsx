import type { Schemas } from "../api";
import { useAddress } from "../address";
import { count } from "../format";
import { Filters } from "../Filters";
import { Answered } from "../Answered";
import { Filter } from "../filterFields";
import { PageLink, TopicLink } from "../links";
import { Pages } from "../Pages";
import { Section, When } from "../parts";
import { Exports } from "../Exports";
import { rowsIn, useBroker } from "../queries";
import { type ListProps, NUMBER, Rows, columnsOf } from "../Rows";
import { TEXT } from "../texts";

const column = columnsOf<Schemas["TopicNumbers"]>();

const COLUMNS = [
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  column.accessor("message_type", { header: TEXT.type }),
  column.accessor("waiting", {
    cell: ({ row: { original: one } }) =>
      one.waiting === 0 ? (
        "0"
      ) : (
        <PageLink to={{ topic: one.topic }} view="messages">
          {count(one.waiting, one.waiting_is_exact)}
        </PageLink>
      ),
    header: TEXT.waiting,
    ...NUMBER,
  }),
  column.accessor("next_due_at", {
    cell: ({ row: { original: one } }) => <When at={one.next_due_at} />,
    header: TEXT.nextDue,
  }),
  column.accessor("released_to", {
    cell: ({ row: { original: one } }) => <When at={one.released_to} />,
    header: TEXT.releasedUpTo,
  }),
  column.accessor("stragglers", {
    cell: ({ row: { original: one } }) => count(one.stragglers),
    header: TEXT.stragglers,
    ...NUMBER,
  }),
];

export const TopicRows = ({ list = "", read, topics }: ListProps & { topics: Schemas["TopicNumbers"][] }) => (
  <Rows
    columns={COLUMNS}
    empty={TEXT.noTopicsYetMakeOneWith}
    keyOf={(one) => one.topic}
    label={TEXT.topics}
    list={list}
    read={read}
    rows={topics}
  />
);

export function Topics({ broker }: { broker: string }) {
  const address = useAddress();
  const where = { name_contains: address.of("name") };
  const after = address.of("after");
  const answer = useBroker(broker, "topics", { ...where, after });
  return (
    <Section
      count={after === "" && rowsIn(answer, (page) => [page.topics.length, page.next === null])}
      title={TEXT.topics}
    >
      <Filters names={{ name: TEXT.nameContains }}>
        <Filter label={TEXT.nameContains} name="name" placeholder={TEXT.all} />
      </Filters>
      <Answered answer={answer}>
        {(page) => (
          <>
            <TopicRows list="topics" read={{ at: page.now_at, readAt: answer.readAt }} topics={page.topics} />
            <Pages next={page.next} />
            <Exports broker={broker} list="topics" of={page.topics} where={where} />
          </>
        )}
      </Answered>
    </Section>
  );
}
