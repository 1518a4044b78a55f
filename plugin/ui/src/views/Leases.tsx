import { type Schemas, get, ofBroker } from "../api";
import { Flex } from "@chakra-ui/react";
import { useAddress } from "../address";
import { count } from "../format";
import { Answered, Consumer, Filter, Rows, Section, Shown, When } from "../parts";
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
              columns={[
                ["Ends", (one) => <When at={one.expires_at} nowAt={page.now_at} />],
                ["Group", (one) => one.group],
                ["Topic", (one) => one.topic],
                ["Queue", (one) => one.queue],
                ["Consumer", (one) => <Consumer name={one.consumer} />],
                ["Since", (one) => <When at={one.leased_at} nowAt={page.now_at} />],
                ["Answered", (one) => `${count(one.answered)} of ${count(one.messages)}`, "number"],
                ["", (one) => (one.is_retry ? "retries" : "")],
              ]}
              empty="No consumer has messages in hand."
              keyOf={(one) => `${one.group} ${one.topic} ${one.queue} ${one.is_retry} ${one.leased_at}`}
              label="Leases"
              rows={page.leases}
            />
            <Shown first="that end first" of={page.leases} />
          </>
        )}
      </Answered>
    </Section>
  );
}
