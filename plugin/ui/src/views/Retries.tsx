import { Flex } from "@chakra-ui/react";
import { type Schemas, get, ofBroker } from "../api";
import { useAddress } from "../address";
import { Answered, Filter, MessageLink, Rows, Section, Shown, When } from "../parts";
import { useAnswer } from "../useAnswer";

export function Retries({ broker }: { broker: string }) {
  const address = useAddress();
  const where = { group: address.of("group"), topic: address.of("topic") };
  const answer = useAnswer(
    JSON.stringify([broker, where]),
    (signal) => get<Schemas["Retries"]>(ofBroker(broker, "retries"), where, signal),
    5,
  );
  return (
    <Section title="Messages that wait for their next attempt, the next one first">
      <Flex gap={2} mb={3} wrap="wrap">
        <Filter label="Group" name="group" placeholder="all" />
        <Filter label="Topic" name="topic" placeholder="all" />
      </Flex>
      <Answered answer={answer}>
        {(page) => (
          <>
            <Rows
              columns={[
                ["Next attempt", (one) => <When at={one.deliver_at} />],
                ["Attempt", (one) => one.attempt],
                ["Group", (one) => one.group],
                ["Topic", (one) => one.topic],
                ["Key", (one) => one.key],
                ["Reason", (one) => one.reason],
                ["Id", (one) => <MessageLink id={one.message_id} />],
              ]}
              empty="No messages wait for a retry."
              keyOf={(one) => `${one.group} ${one.message_id} ${one.attempt}`}
              label="Retries"
              rows={page.retries}
            />
            <Shown first="that are next" of={page.retries} />
          </>
        )}
      </Answered>
    </Section>
  );
}
