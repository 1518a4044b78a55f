// The consumers that are there and wait: tasks that linger, and programs.
import { Badge } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { Answered } from "../Answered";
import { Consumer, GroupLink, TopicLink } from "../links";
import { CutNote } from "../Pages";
import { Section, When } from "../parts";
import { Exports } from "../Exports";
import { rowsIn, useBroker } from "../queries";
import { Rows, columnsOf } from "../Rows";
import { TEXT } from "../texts";

const column = columnsOf<Schemas["WaitingConsumer"]>();

const columns = (nowAt: string) => [
  column.accessor("group", {
    cell: ({ row: { original: one } }) => <GroupLink group={one.group} topic={one.topic} />,
    header: TEXT.group,
  }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  column.accessor((one) => (one.consumer.startsWith("airflow:") ? TEXT.aTask : TEXT.aProgram), {
    cell: ({ getValue }) => <Badge>{getValue<string>()}</Badge>,
    header: TEXT.kind,
    id: "kind",
  }),
  column.accessor("consumer", {
    cell: ({ row: { original: one } }) => <Consumer name={one.consumer} />,
    header: TEXT.consumer,
  }),
  column.accessor((one) => [one.login, one.client_address].filter(Boolean).join(TEXT.fromAMachine), {
    header: TEXT.login,
    id: "login",
  }),
  column.accessor((one) => one.started_at ?? "", {
    cell: ({ row: { original: one } }) => <When at={one.started_at} nowAt={nowAt} />,
    header: TEXT.since,
    id: "started_at",
  }),
];

export function WaitingConsumers({ broker }: { broker: string }) {
  const answer = useBroker(broker, "waiting-consumers", {}, 5);
  return (
    <Section
      count={rowsIn(answer, (page) => [page.consumers.length, !page.more])}
      title={TEXT.consumersThatWait}
    >
      <Answered answer={answer}>
        {(page) => (
          <>
            <Rows
              columns={columns(page.now_at)}
              empty={TEXT.noConsumerWaits}
              keyOf={(one, index) => `${one.topic} ${one.group} ${one.consumer} ${index}`}
              label={TEXT.waitingConsumers}
              rows={page.consumers}
              sorts
            />
            {page.more && (
              <CutNote of={page.consumers}>{TEXT.onlyTheFirstByTopicAndGroup(page.consumers.length)}</CutNote>
            )}
            <Exports broker={broker} list="waiting-consumers" of={page.consumers} />
          </>
        )}
      </Answered>
    </Section>
  );
}
