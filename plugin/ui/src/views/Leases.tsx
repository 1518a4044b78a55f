import type { Schemas } from "../api";
import { useAddress } from "../address";
import { count } from "../format";
import { Filters } from "../Filters";
import { Answered } from "../Answered";
import { Filter } from "../filterFields";
import { Consumer, GroupLink, TopicLink } from "../links";
import { Shown } from "../Pages";
import { Section, When } from "../parts";
import { Exports } from "../Exports";
import { rowsIn, useBroker } from "../queries";
import { ReleaseLease } from "../ReleaseLease";
import { ACTIONS, NUMBER, Rows, columnsOf } from "../Rows";
import { TEXT } from "../texts";

const column = columnsOf<Schemas["RunningLease"]>();

const columns = (nowAt: string) => [
  column.accessor("expires_at", {
    cell: ({ row: { original: one } }) => <When at={one.expires_at} nowAt={nowAt} />,
    header: TEXT.ends,
  }),
  column.accessor("group", {
    cell: ({ row: { original: one } }) => <GroupLink group={one.group} topic={one.topic} />,
    header: TEXT.group,
  }),
  column.accessor("topic", {
    cell: ({ row: { original: one } }) => <TopicLink topic={one.topic} />,
    header: TEXT.topic,
  }),
  column.accessor("queue", { header: TEXT.queue, ...NUMBER }),
  column.accessor("consumer", {
    cell: ({ row: { original: one } }) => <Consumer name={one.consumer} />,
    header: TEXT.consumer,
  }),
  column.accessor("leased_at", {
    cell: ({ row: { original: one } }) => <When at={one.leased_at} nowAt={nowAt} />,
    header: TEXT.since,
  }),
  column.accessor("messages", {
    cell: ({ row: { original: one } }) => TEXT.shownOfAll(count(one.answered), count(one.messages)),
    header: TEXT.answered,
    ...NUMBER,
  }),
  column.accessor((one) => (one.is_retry ? TEXT.nounRetries : TEXT.firstAttempts), {
    header: TEXT.messages,
    id: "is_retry",
  }),
];

export function Leases({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const address = useAddress();
  const where = { group: address.of("group"), topic: address.of("topic") };
  const answer = useBroker(broker, "leases", where, 5);
  return (
    <Section
      count={rowsIn(answer, (page) => [page.leases.length, !page.more])}
      title={TEXT.openLeasesNextToEndFirst}
    >
      <Filters names={{ group: TEXT.group, topic: TEXT.topic }}>
        <Filter label={TEXT.group} name="group" placeholder={TEXT.all} />
        <Filter label={TEXT.topic} name="topic" placeholder={TEXT.all} />
      </Filters>
      <Answered answer={answer}>
        {(page) => (
          <>
            <Rows
              columns={[
                ...columns(page.now_at),
                mayAct &&
                  column.display({
                    cell: ({ row: { original: one } }) => <ReleaseLease broker={broker} lease={one} />,
                    ...ACTIONS,
                  }),
              ]}
              empty={page.more ? TEXT.noneWasReadInTime : TEXT.noConsumerHasMessagesInHand}
              keyOf={(one) => one.lease_id}
              label={TEXT.leases}
              list="leases"
              rows={page.leases}
              sorts
            />
            <Shown first={TEXT.thatEndFirst} hasMore={page.more} of={page.leases} />
            <Exports broker={broker} list="leases" of={page.leases} where={where} />
          </>
        )}
      </Answered>
    </Section>
  );
}
