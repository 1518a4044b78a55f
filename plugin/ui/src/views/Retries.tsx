import { Flex } from "@chakra-ui/react";
import type { Schemas } from "../api";
import { useAddress } from "../address";
import { Answered, Filter, MessageLink, Section, Shown, When } from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";

const column = columnsOf<Schemas["WaitingRetry"]>();

const COLUMNS = [
  column.accessor("deliver_at", {
    cell: ({ row: { original: one } }) => <When at={one.deliver_at} />,
    header: "Next attempt",
  }),
  column.accessor("attempt", { header: "Attempt", ...NUMBER }),
  column.accessor("group", { header: "Group" }),
  column.accessor("topic", { header: "Topic" }),
  column.accessor("key", { header: "Key" }),
  column.accessor("reason", { header: "Reason" }),
  column.accessor("message_id", {
    cell: ({ row: { original: one } }) => <MessageLink id={one.message_id} />,
    enableSorting: false,
    header: "Id",
  }),
];

export function Retries({ broker }: { broker: string }) {
  const address = useAddress();
  const where = { group: address.of("group"), topic: address.of("topic") };
  const answer = useBroker(broker, "retries", where, 5);
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
              columns={COLUMNS}
              empty="No messages wait for a retry."
              keyOf={(one) => `${one.group} ${one.message_id} ${one.attempt}`}
              label="Retries"
              rows={page.retries}
              sorts
            />
            <Shown first="that are next" of={page.retries} />
          </>
        )}
      </Answered>
    </Section>
  );
}
