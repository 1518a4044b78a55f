import { Text } from "@chakra-ui/react";
import { type Schemas, get, ofBroker, post } from "../api";
import { Asking } from "../Asking";
import { span } from "../format";
import { Answered, PageLink, Rows, Section, When } from "../parts";
import { useAnswer } from "../useAnswer";

export function Schedules({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const answer = useAnswer(
    broker,
    (signal) => get<Schemas["Schedules"]>(ofBroker(broker, "schedules"), {}, signal),
    10,
  );
  return (
    <Section title="Schedules">
      <Answered answer={answer}>
        {(page) => (
          <Rows
            columns={[
              ["Schedule", (one) => one.name],
              [
                "Topic",
                (one) => (
                  <PageLink to={{ topic: one.topic }} view="messages">
                    {one.topic}
                  </PageLink>
                ),
              ],
              [
                "Occurs",
                (one) =>
                  one.cron ? `${one.cron} (${one.timezone})` : `every ${span(one.every_seconds ?? 0)}`,
              ],
              [
                "Next",
                (one) =>
                  one.paused_at ? (
                    <Text>
                      paused since <When at={one.paused_at} />
                    </Text>
                  ) : (
                    <When at={one.next_at} />
                  ),
              ],
              ["Last", (one) => <When at={one.last_at} />],
              ["Missed ones", (one) => one.misfire],
              mayAct && ["Actions", (one) => <Switch broker={broker} done={answer.again} schedule={one} />],
            ]}
            empty="No schedules yet: add one with `duewheel schedule add`."
            keyOf={(one) => one.name}
            label="Schedules"
            rows={page.schedules}
          />
        )}
      </Answered>
    </Section>
  );
}

function Switch({
  broker,
  done,
  schedule,
}: {
  broker: string;
  done: () => void;
  schedule: Schemas["Schedule"];
}) {
  const { name } = schedule;
  const paused = schedule.paused_at !== null;
  return (
    <Asking
      act={async () => {
        await post(ofBroker(broker, `schedules/${paused ? "resume" : "pause"}`), { name });
        return paused ? `${name} is resumed.` : `${name} is paused.`;
      }}
      action={paused ? "Resume" : "Pause"}
      done={done}
    >
      <Text>
        {paused
          ? `${name} is resumed from now. Occurrences that fell into the pause are not sent.`
          : `${name} sends nothing until it is resumed, and messages that it has sent ahead are taken back.`}
      </Text>
    </Asking>
  );
}
