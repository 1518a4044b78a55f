import { Text } from "@chakra-ui/react";
import { type Schemas, post } from "./api";
import { Asking } from "./Asking";
import { many } from "./format";
import { TEXT } from "./texts";

/** Ends the lease of a consumer that hangs. */
export const ReleaseLease = ({ broker, lease }: { broker: string; lease: Schemas["RunningLease"] }) => (
  <Asking
    act={async () => {
      const { messages } = await post<Schemas["Released"]>(broker, "leases/release", {
        group: lease.group,
        lease_id: lease.lease_id,
        topic: lease.topic,
      });
      return messages === null
        ? TEXT.nothingToDoTheLeaseWas
        : TEXT.theLeaseIsReleasedSentOn(many(messages, TEXT.nounMessage));
    }}
    action={TEXT.release}
    quiet
    serious
  >
    <Text>
      {TEXT.endsTheLeaseOf}
      {lease.consumer ?? TEXT.aConsumer}
      {TEXT.asIfItHadRunOut} {lease.group}
      {TEXT.againAtOnceAndTheAttempt}
    </Text>
  </Asking>
);
