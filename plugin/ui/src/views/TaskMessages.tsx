import { Text } from "@chakra-ui/react";
import { type Schemas, getOfAirflow } from "../api";
import { Answered } from "../Answered";
import { MessageLink } from "../links";
import { Section, When } from "../parts";
import { useAnswer, useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { type Task, resourceOf } from "../tasks";
import { TEXT } from "../texts";

type TaskInstance = {
  end_date: string | null;
  rendered_fields: Record<string, unknown>;
  run_after: string;
};

/** The tab of a task instance: the messages that it sent and received, by its own parameters. */
export function TaskMessages({ task }: { task: Task }) {
  const answer = useAnswer(["task", task], (signal) => getOfAirflow<TaskInstance>(resourceOf(task), signal));
  return (
    <Answered answer={answer}>
      {(one) => {
        const said = (name: string) => {
          const value = one.rendered_fields[name];
          return typeof value === "string" && value !== "" ? value : undefined;
        };
        const broker = said("duewheel_conn_id");
        const topic = said("topic");
        if (broker === undefined || topic === undefined) {
          return <Text color="fg.muted">{TEXT.thisTaskHasNotRunOr}</Text>;
        }
        return (
          <Both
            broker={broker}
            where={{
              dag_id: task.dagId,
              group: said("group"),
              map_index: task.mapIndex,
              run_id: task.runId,
              // Airflow's clock may differ from the broker's.
              since_at: shifted(one.run_after, -HOUR),
              task_id: task.taskId,
              topic,
              until_at: one.end_date === null ? undefined : shifted(one.end_date, HOUR),
            }}
          />
        );
      }}
    </Answered>
  );
}

const HOUR = 3_600_000;
const shifted = (at: string, by: number) => new Date(Date.parse(at) + by).toISOString();

const column = columnsOf<Schemas["NamedMessage"]>();

const KEY_AND_TAG = [
  column.accessor("key", { header: TEXT.key }),
  column.accessor("tag", { header: TEXT.tag }),
];

const idOf = (broker: string) =>
  column.accessor("message_id", {
    cell: ({ row: { original: one } }) => <MessageLink broker={broker} id={one.message_id} />,
    header: TEXT.id,
  });

function Both({ broker, where }: { broker: string; where: Record<string, string | number | undefined> }) {
  const answer = useBroker(broker, "task-messages", where);
  return (
    <Answered answer={answer} asOf={(page) => page.now_at}>
      {({ messages, now_at: nowAt }) => (
        <>
          <Section title={TEXT.messagesThatThisTaskInstanceReceived}>
            <Rows
              columns={[
                column.accessor("leased_at", {
                  cell: ({ row: { original: one } }) => <When at={one.leased_at} nowAt={nowAt} />,
                  header: TEXT.receivedAt,
                }),
                ...KEY_AND_TAG,
                column.accessor("attempt", { header: TEXT.attempt, ...NUMBER }),
                column.accessor("deliver_at", {
                  cell: ({ row: { original: one } }) => <When at={one.deliver_at} />,
                  header: TEXT.due,
                }),
                idOf(broker),
              ]}
              empty={TEXT.noneThatTheBrokerStillKnows}
              keyOf={(one) => `${one.message_id} ${one.leased_at}`}
              label={TEXT.receivedMessages}
              rows={messages.filter((one) => one.leased_at !== null)}
            />
          </Section>
          <Section title={TEXT.messagesThatItSent}>
            <Rows
              columns={[
                column.accessor("born_at", {
                  cell: ({ row: { original: one } }) => <When at={one.born_at} nowAt={nowAt} />,
                  header: TEXT.sent,
                }),
                ...KEY_AND_TAG,
                column.accessor("deliver_at", {
                  cell: ({ row: { original: one } }) => <When at={one.deliver_at} nowAt={nowAt} />,
                  header: TEXT.due,
                }),
                idOf(broker),
              ]}
              empty={TEXT.noneThatTheBrokerStillKnows}
              keyOf={(one) => one.message_id}
              label={TEXT.sentMessages}
              rows={messages.filter((one) => one.leased_at === null)}
            />
          </Section>
        </>
      )}
    </Answered>
  );
}
