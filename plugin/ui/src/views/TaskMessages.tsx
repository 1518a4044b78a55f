import { Text } from "@chakra-ui/react";
import { type Schemas, get, getOfAirflow, ofBroker } from "../api";
import { Answered, MessageLink, Row, Rows, Section, When } from "../parts";
import { type Task, resourceOf } from "../tasks";
import { useAnswer } from "../useAnswer";

type TaskInstance = {
  end_date: string | null;
  rendered_fields: Record<string, unknown>;
  run_after: string;
};

/** The tab of a task instance: the messages that it sent and received, by its own parameters. */
export function TaskMessages({ task }: { task: Task }) {
  const answer = useAnswer(JSON.stringify(task), (signal) =>
    getOfAirflow<TaskInstance>(resourceOf(task), signal),
  );
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
          return (
            <Text color="fg.muted">
              This task has not run, or names no topic. Messages that a task handles through a hook in its own
              code are not listed here.
            </Text>
          );
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

function Both({ broker, where }: { broker: string; where: Record<string, string | number | undefined> }) {
  const answer = useAnswer(JSON.stringify([broker, where]), (signal) =>
    get<Schemas["TaskMessages"]>(ofBroker(broker, "task-messages"), where, signal),
  );
  return (
    <Answered answer={answer}>
      {({ messages, now_at: nowAt }) => (
        <>
          <Section title="Messages that this task instance received">
            <Rows
              empty="None that the broker still knows of."
              heads={["Received", "Key", "Tag", "Attempt", "Due", "Id"]}
              label="Received messages"
            >
              {messages
                .filter((one) => one.leased_at !== null)
                .map((one) => (
                  <Row
                    cells={[
                      <When at={one.leased_at} key="leased" nowAt={nowAt} />,
                      one.key ?? "",
                      one.tag ?? "",
                      one.attempt,
                      <When at={one.deliver_at} key="due" />,
                      <MessageLink broker={broker} id={one.message_id} key="id" />,
                    ]}
                    key={`${one.message_id} ${one.leased_at}`}
                  />
                ))}
            </Rows>
          </Section>
          <Section title="Messages that it sent">
            <Rows
              empty="None that the broker still knows of."
              heads={["Sent", "Key", "Tag", "Due", "Id"]}
              label="Sent messages"
            >
              {messages
                .filter((one) => one.leased_at === null)
                .map((one) => (
                  <Row
                    cells={[
                      <When at={one.born_at} key="born" nowAt={nowAt} />,
                      one.key ?? "",
                      one.tag ?? "",
                      <When at={one.deliver_at} key="due" nowAt={nowAt} />,
                      <MessageLink broker={broker} id={one.message_id} key="id" />,
                    ]}
                    key={one.message_id}
                  />
                ))}
            </Rows>
          </Section>
        </>
      )}
    </Answered>
  );
}
