import { Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Failure, type Schemas, get, ofBroker, post } from "../api";
import { useAddress } from "../address";
import { Asking } from "../Asking";
import { count } from "../format";
import { Answered, PageLink, Pages, Rows, Section, When } from "../parts";
import { useAnswer } from "../useAnswer";
import { fromWall, useZone } from "../zone";

export function GroupRows({
  actions,
  groups,
  nowAt,
}: {
  actions?: (group: Schemas["GroupNumbers"]) => React.ReactNode;
  groups: Schemas["GroupNumbers"][];
  nowAt?: string;
}) {
  return (
    <Rows
      columns={[
        ["Group", (one) => one.group],
        ["Topic", (one) => one.topic],
        // Counted up to 10 000 for each queue and slot.
        ["Ready", (one) => count(one.ready)],
        ["Oldest of these", (one) => <When at={one.oldest_deliver_at} nowAt={nowAt} />],
        [
          "In hand",
          (one) => (
            <PageLink to={{ group: one.group, topic: one.topic }} view="leases">
              {count(one.inflight)}
            </PageLink>
          ),
        ],
        [
          "Wait for a retry",
          (one) => (
            <PageLink to={{ group: one.group, topic: one.topic }} view="retries">
              {count(one.waiting_retry)}
            </PageLink>
          ),
        ],
        [
          "Dead",
          (one) => (
            <PageLink to={{ group: one.group, topic: one.topic }} view="dead">
              {count(one.dead)}
            </PageLink>
          ),
        ],
        actions && ["Actions", actions],
      ]}
      empty="No groups yet: a group is made by its first consumer."
      keyOf={(one) => `${one.group} ${one.topic}`}
      label="Consumer groups"
      rows={groups}
    />
  );
}

/** Said where there was no time to look at the groups of all topics. */
export const GroupsLeftOut = ({ to }: { to: string | null }) =>
  to === null ? null : (
    <Text color="fg.muted" fontSize="sm" mb={2}>
      There was no time for the topics behind “{to}”, by name.
    </Text>
  );

export function Groups({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const after = useAddress().of("after");
  const answer = useAnswer(JSON.stringify([broker, after]), (signal) =>
    get<Schemas["Groups"]>(ofBroker(broker, "groups"), { after }, signal),
  );
  return (
    <Section title="Groups">
      <Answered answer={answer}>
        {(page) => (
          <>
            <GroupRows
              groups={page.groups}
              nowAt={page.now_at}
              {...(mayAct
                ? {
                    actions: (one: Schemas["GroupNumbers"]) => (
                      <Rewind broker={broker} done={answer.again} group={one} key="rewind" />
                    ),
                  }
                : {})}
            />
            <Pages next={page.next} />
          </>
        )}
      </Answered>
    </Section>
  );
}

function Rewind({
  broker,
  done,
  group,
}: {
  broker: string;
  done: () => void;
  group: Schemas["GroupNumbers"];
}) {
  const [to, setTo] = useState("");
  const zone = useZone();
  const [isHalf, setIsHalf] = useState(false);
  return (
    <Asking
      act={async () => {
        // An incomplete instant has no value, and would be taken for an empty field.
        if (isHalf) throw new Failure(0, "NoInstant", "The instant is not complete. Nothing was changed.");
        const rewound = await post<Schemas["Rewound"]>(ofBroker(broker, "groups/rewind"), {
          group: group.group,
          to: fromWall(to, zone) ?? "earliest",
          topic: group.topic,
        });
        return (
          `The group reads on from that instant. ${count(rewound.leases_ended)} leases ended, ` +
          `${count(rewound.messages_returned)} messages are ready again and ` +
          `${count(rewound.retries_taken_back)} retries were taken back.`
        );
      }}
      action="Rewind"
      done={done}
      serious
    >
      <Text mb={3}>
        {group.group} receives the messages again that were released on {group.topic} since this instant. Open
        leases of its consumers end. Dead letters stay.
      </Text>
      <Text as="label" fontSize="sm">
        Since, in {zone} (empty: all stored messages)
        <Input
          name="to"
          onBlur={(event) => setIsHalf(event.target.validity.badInput)}
          onChange={(event) => setTo(event.target.value)}
          step="1"
          type="datetime-local"
          value={to}
        />
      </Text>
    </Asking>
  );
}
