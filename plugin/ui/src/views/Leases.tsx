import { type Schemas, get, ofBroker } from "../api";
import { Flex } from "@chakra-ui/react";
import { useAddress } from "../address";
import { count } from "../format";
import { Answered, Consumer, Filter, Row, Rows, Section, Shown, When } from "../parts";
import { useAnswer } from "../useAnswer";

export function Leases({ broker }: { broker: string }) {
  const address = useAddress();
  const where = { group: address.of("group"), topic: address.of("topic") };
  const answer = useAnswer(
    JSON.stringify([broker, where]),
    (signal) => get<Schemas["Leases"]>(ofBroker(broker, "leases"), where, signal),
    5,
  );
  return (
    <Section title="Open leases, those that end first at the top">
      <Flex gap={2} mb={3} wrap="wrap">
        <Filter label="Group" name="group" placeholder="all" />
        <Filter label="Topic" name="topic" placeholder="all" />
      </Flex>
      <Answered answer={answer}>
        {(page) => (
          <>
            <Rows
              empty="No consumer has messages in hand."
              heads={["Ends", "Group", "Topic", "Queue", "Consumer", "Since", "Answered", ""]}
              label="Leases"
            >
              {page.leases.map((one) => (
                <Row
                  cells={[
                    <When at={one.expires_at} key="ends" nowAt={page.now_at} />,
                    one.group,
                    one.topic,
                    one.queue,
                    <Consumer key="consumer" name={one.consumer} />,
                    <When at={one.leased_at} key="since" nowAt={page.now_at} />,
                    `${count(one.answered)} of ${count(one.messages)}`,
                    one.is_retry ? "retries" : "",
                  ]}
                  key={`${one.group} ${one.topic} ${one.queue} ${one.is_retry} ${one.leased_at}`}
                />
              ))}
            </Rows>
            <Shown first="that end first" of={page.leases} />
          </>
        )}
      </Answered>
    </Section>
  );
}
