import type { Schemas } from "../api";
import { useAddress } from "../address";
import { count } from "../format";
import { Filters } from "../Filters";
import { Answered, Consumer, Filter, Section, Shown, When } from "../parts";
import { useBroker } from "../queries";
import { ReleaseLease } from "../ReleaseLease";
import { NUMBER, Rows, columnsOf } from "../Rows";

const column = columnsOf<Schemas["RunningLease"]>();

const columns = (nowAt: string) => [
  column.accessor("expires_at", {
    cell: ({ row: { original: one } }) => <When at={one.expires_at} nowAt={nowAt} />,
    header: "Ends",
  }),
  column.accessor("group", { header: "Group" }),
  column.accessor("topic", { header: "Topic" }),
  column.accessor("queue", { header: "Queue", ...NUMBER }),
  column.accessor("consumer", {
    cell: ({ row: { original: one } }) => <Consumer name={one.consumer} />,
    header: "Consumer",
  }),
  column.accessor("leased_at", {
    cell: ({ row: { original: one } }) => <When at={one.leased_at} nowAt={nowAt} />,
    header: "Since",
  }),
  column.accessor("messages", {
    cell: ({ row: { original: one } }) => `${count(one.answered)} of ${count(one.messages)}`,
    header: "Answered",
    ...NUMBER,
  }),
  column.accessor((one) => (one.is_retry ? "retries" : "first attempts"), { header: "Messages" }),
];

export function Leases({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const address = useAddress();
  const where = { group: address.of("group"), topic: address.of("topic") };
  const answer = useBroker(broker, "leases", where, 5);
  return (
    <Section title="Open leases, those that end first at the top">
      <Filters names={["group", "topic"]}>
        <Filter label="Group" name="group" placeholder="all" />
        <Filter label="Topic" name="topic" placeholder="all" />
      </Filters>
      <Answered answer={answer}>
        {(page) => (
          <>
            <Rows
              columns={[
                ...columns(page.now_at),
                mayAct &&
                  column.accessor("lease_id", {
                    cell: ({ row: { original: one } }) => <ReleaseLease broker={broker} lease={one} />,
                    enableSorting: false,
                    header: "Actions",
                  }),
              ]}
              empty="No consumer has messages in hand."
              keyOf={(one) => one.lease_id}
              label="Leases"
              rows={page.leases}
              sorts
            />
            <Shown first="that end first" of={page.leases} />
          </>
        )}
      </Answered>
    </Section>
  );
}
