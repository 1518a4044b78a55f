// The consumers that are there and wait: tasks that linger, and programs.
import { Badge } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { Answered, Consumer, Section, When } from "../parts";
import { useBroker } from "../queries";
import { Rows, columnsOf } from "../Rows";

const column = columnsOf<Schemas["WaitingConsumer"]>();

const columns = (nowAt: string) => [
  column.accessor("group", { header: "Group" }),
  column.accessor("topic", { header: "Topic" }),
  column.accessor((one) => (one.consumer.startsWith("airflow:") ? "task" : "program"), {
    cell: ({ getValue }) => <Badge>{getValue<string>()}</Badge>,
    header: "Kind",
    id: "kind",
  }),
  column.accessor("consumer", {
    cell: ({ row: { original: one } }) => <Consumer name={one.consumer} />,
    header: "Consumer",
  }),
  column.accessor((one) => [one.login, one.client_address].filter(Boolean).join(" from "), {
    header: "Login",
    id: "login",
  }),
  column.accessor((one) => one.started_at ?? "", {
    cell: ({ row: { original: one } }) => <When at={one.started_at} nowAt={nowAt} />,
    header: "Since",
    id: "started_at",
  }),
];

export function WaitingConsumers({ broker }: { broker: string }) {
  const answer = useBroker(broker, "waiting-consumers", {}, 5);
  return (
    <Section title="Consumers that wait for messages">
      <Answered answer={answer}>
        {(page) => (
          <Rows
            columns={columns(page.now_at)}
            empty="No task lingers and no program waits: the next message starts a run, or waits for a consumer."
            keyOf={(one, index) => `${one.topic} ${one.group} ${one.consumer} ${index}`}
            label="Waiting consumers"
            rows={page.consumers}
            sorts
          />
        )}
      </Answered>
    </Section>
  );
}
