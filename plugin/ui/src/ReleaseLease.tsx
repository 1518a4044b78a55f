import { Text } from "@chakra-ui/react";
import { type Schemas, ofBroker, post } from "./api";
import { Asking } from "./Asking";
import { many } from "./format";

/** Ends the lease of a consumer that hangs. */
export const ReleaseLease = ({ broker, lease }: { broker: string; lease: Schemas["RunningLease"] }) => (
  <Asking
    act={async () => {
      const { messages } = await post<Schemas["Released"]>(ofBroker(broker, "leases/release"), {
        group: lease.group,
        lease_id: lease.lease_id,
        topic: lease.topic,
      });
      return messages === null
        ? "Nothing to do: the lease was over already."
        : `The lease is released: ${many(messages, "message")} sent on.`;
    }}
    action="Release"
    quiet
    serious
  >
    <Text>
      Ends the lease of {lease.consumer ?? "a consumer"} as if it had run out. Its open messages come to{" "}
      {lease.group} again at once, and the attempt counts; a late ack is refused. Where the consumer still
      works, the work is done twice.
    </Text>
  </Asking>
);
