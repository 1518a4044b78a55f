import type { Schemas } from "../api";
import { useAddress } from "../address";
import { count } from "../format";
import { Answered, PageLink, Pages, Section, When } from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";

const column = columnsOf<Schemas["TopicNumbers"]>();

const COLUMNS = [
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => (
      <PageLink to={{ topic: one.topic }} view="messages">
        {one.topic}
      </PageLink>
    ),
    header: "Topic",
  }),
  column.accessor("message_type", { header: "Type" }),
  column.accessor("waiting", {
    cell: ({ row: { original: one } }) => count(one.waiting, one.waiting_is_exact),
    header: "Waiting",
    ...NUMBER,
  }),
  column.accessor("next_due_at", {
    cell: ({ row: { original: one } }) => <When at={one.next_due_at} />,
    header: "Next due",
  }),
  column.accessor("released_to", {
    cell: ({ row: { original: one } }) => <When at={one.released_to} />,
    header: "Released up to",
  }),
  column.accessor("stragglers", {
    cell: ({ row: { original: one } }) => count(one.stragglers),
    header: "Stragglers",
    ...NUMBER,
  }),
];

export function Topics({ broker }: { broker: string }) {
  const after = useAddress().of("after");
  const answer = useBroker(broker, "topics", { after });
  return (
    <Section title="Topics">
      <Answered answer={answer} asOf={(page) => page.now_at}>
        {(page) => (
          <>
            <Rows
              columns={COLUMNS}
              empty="No topics yet: make one with `duewheel topic create`."
              keyOf={(one) => one.topic}
              label="Topics"
              rows={page.topics}
            />
            <Pages next={page.next} />
          </>
        )}
      </Answered>
    </Section>
  );
}
