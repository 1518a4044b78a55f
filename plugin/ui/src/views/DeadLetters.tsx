import { Button, Flex, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Failure, type Schemas, addressOf, get, ofBroker, post } from "../api";
import { useAddress } from "../address";
import { Asking, type Course } from "../Asking";
import { count } from "../format";
import {
  Answered,
  Filter,
  MessageLink,
  PageLink,
  Pages,
  Rows,
  Section,
  Shown,
  When,
  useChoice,
} from "../parts";
import { useAnswer } from "../useAnswer";
import { GroupsLeftOut } from "./Groups";
import { Choose } from "./Messages";

const AT_ONCE = 500;
const FORMATS = [
  ["csv", "CSV"],
  ["jsonl", "JSON lines"],
];

type Rights = { mayAct: boolean; mayReadBodies: boolean };

export function DeadLetters({ broker, mayAct, mayReadBodies }: Rights & { broker: string }) {
  const address = useAddress();
  const group = address.of("group");
  return (
    <Section title="Dead letters by topic, the oldest first">
      <Flex gap={2} mb={3} wrap="wrap">
        <Filter label="Group" name="group" />
        <Filter label="Topic" name="topic" placeholder="all" />
        <Filter label="Key begins with" name="key" />
        <Filter label="Reason contains" name="reason" />
      </Flex>
      {group === "" ? (
        <Choices broker={broker} />
      ) : (
        <List broker={broker} group={group} mayAct={mayAct} mayReadBodies={mayReadBodies} />
      )}
    </Section>
  );
}

/** The groups that have dead letters, those with the most first, to choose from. */
function Choices({ broker }: { broker: string }) {
  const answer = useAnswer(broker, (signal) =>
    get<Schemas["Groups"]>(ofBroker(broker, "groups"), { sort: "dead" }, signal),
  );
  return (
    <Answered answer={answer}>
      {(page) => {
        const some = page.groups.filter((one) => one.dead > 0);
        return (
          <>
            <GroupsLeftOut to={page.groups_to} />
            <Rows
              columns={[
                [
                  "Group",
                  (one) => (
                    <PageLink to={{ group: one.group, topic: one.topic }} view="dead">
                      {one.group}
                    </PageLink>
                  ),
                ],
                ["Topic", (one) => one.topic],
                ["Dead letters", (one) => count(one.dead), "number"],
              ]}
              empty="No group has dead letters."
              keyOf={(one) => `${one.group} ${one.topic}`}
              label="Groups with dead letters"
              rows={some}
            />
            <Shown first="with the most" of={some} />
          </>
        );
      }}
    </Answered>
  );
}

function List({ broker, group, mayAct, mayReadBodies }: Rights & { broker: string; group: string }) {
  const address = useAddress();
  const [after, key, reason, topic] = ["after", "key", "reason", "topic"].map(address.of) as [
    string,
    string,
    string,
    string,
  ];
  const where = { group, key_prefix: key, reason_contains: reason, redriven: false, topic };
  const answer = useAnswer(JSON.stringify([broker, where, after]), (signal) =>
    get<Schemas["DeadLetters"]>(ofBroker(broker, "dead-letters"), { ...where, after }, signal),
  );
  const letters = answer.value?.dead_letters ?? [];
  const choice = useChoice(letters.map((one) => one.message_id));
  const whose = { group, ...(topic === "" ? {} : { topic }) };
  const begins = key === "" ? {} : { key_prefix: key };
  const ask = (more: object) =>
    post<Schemas["Redriven"]>(ofBroker(broker, "dead-letters/redrive"), { ...whose, ...more });
  const done = () => {
    choice.clear();
    answer.again();
  };
  return (
    <Answered answer={answer}>
      {({ next }) => (
        <>
          {mayReadBodies && letters.length > 0 && (
            <Flex align="center" gap={2} mb={3} wrap="wrap">
              <Text fontSize="sm">All that match the filter, with their bodies:</Text>
              {FORMATS.map(([format, words]) => (
                <Button asChild key={format} size="xs" variant="outline">
                  <a
                    download
                    href={addressOf(ofBroker(broker, "dead-letters/export"), { ...where, format }).href}
                  >
                    Export {words}
                  </a>
                </Button>
              ))}
            </Flex>
          )}
          {mayAct && (
            <Flex align="center" gap={2} mb={3} wrap="wrap">
              <Text fontSize="sm">{choice.now.length} chosen:</Text>
              <Asking
                act={async () => {
                  const redriven = await ask({ dry_run: false, message_ids: choice.now });
                  return `${count(redriven.redriven)} sent again. They come to the group at once.`;
                }}
                action="Redrive"
                disabled={choice.now.length === 0}
                done={done}
              >
                <Text>
                  {count(choice.now.length)} dead letters are sent to {group} again, each with its id.
                </Text>
              </Asking>
              <RedriveAll
                ask={(more) => ask({ ...begins, ...more })}
                done={done}
                filtered={reason}
                group={group}
                key={reason}
                keyPrefix={key}
              />
            </Flex>
          )}
          <Rows
            columns={[
              mayAct && [
                <Choose checked={choice.all} key="all" label="Choose all" toggle={choice.toggleAll} />,
                (one) => (
                  <Choose
                    checked={choice.has(one.message_id)}
                    label={`Choose ${one.key ?? one.message_id}`}
                    toggle={() => choice.toggle(one.message_id)}
                  />
                ),
              ],
              ["Dead since", (one) => <When at={one.dead_at} />],
              ["Topic", (one) => one.topic],
              ["Key", (one) => one.key],
              ["Attempts", (one) => one.attempt],
              [
                "Reason",
                (one) => (
                  <Text lineClamp={3} title={one.reason ?? ""}>
                    {one.reason ?? ""}
                  </Text>
                ),
              ],
              ["Id", (one) => <MessageLink id={one.message_id} />],
            ]}
            empty={
              next === null
                ? "No matching dead letters of this group, or all were sent again."
                : "No match on this page. Go on to the next."
            }
            keyOf={(one) => `${one.message_id} ${one.dead_at}`}
            label="Dead letters"
            rows={letters}
          />
          <Pages next={next} />
        </>
      )}
    </Answered>
  );
}

const wait = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

/** Sends one dead letter again, from the page of its message. */
export const RedriveOne = ({
  broker,
  done,
  group,
  id,
}: {
  broker: string;
  done: () => void;
  group: string;
  id: string;
}) => (
  <Asking
    act={async () => {
      const { redriven } = await post<Schemas["Redriven"]>(ofBroker(broker, "dead-letters/redrive"), {
        dry_run: false,
        group,
        message_ids: [id],
      });
      return redriven > 0
        ? "Sent again. It comes to the group at once."
        : "Nothing to do: it was sent again before, or is no longer kept.";
    }}
    action="Redrive"
    done={done}
  >
    <Text>The dead letter is sent to {group} again, with its id.</Text>
  </Asking>
);

function RedriveAll({
  ask,
  done,
  filtered,
  group,
  keyPrefix,
}: {
  ask: (more: object) => Promise<Schemas["Redriven"]>;
  done: () => void;
  /** The filter of the list, as the initial value. */
  filtered: string;
  group: string;
  keyPrefix: string;
}) {
  const [reason, setReason] = useState(filtered);
  const [rate, setRate] = useState("");
  const which = reason === "" ? {} : { reason_contains: reason };
  const all = async ({ isStopped, tell }: Course) => {
    // A rate is a number in each second. The page sends one request after another, and each dead letter is sent once.
    const perSecond = rate === "" ? Infinity : Number(rate);
    if (!(perSecond > 0)) {
      throw new Failure(0, "NoRate", "The rate has to be more than 0. Leave it empty for no limit.");
    }
    const portion = Math.max(1, Math.min(Math.floor(perSecond), AT_ONCE));
    let sent = 0;
    let ended = "They come to the group at once.";
    try {
      for (;;) {
        const { redriven } = await ask({ ...which, dry_run: false, max_messages: portion });
        sent += redriven;
        if (redriven < portion) break;
        tell(`${count(sent)} sent again …`);
        const goesOnAt = Date.now() + (portion / perSecond) * 1000;
        while (Date.now() < goesOnAt && !isStopped()) await wait(Math.min(0.2, portion / perSecond));
        if (isStopped()) {
          ended = "Stopped: the others are unchanged.";
          break;
        }
      }
    } catch (error) {
      if (sent === 0 || !(error instanceof Failure)) throw error;
      ended = `${error.message} Redrive again for the rest.`;
    }
    return `${count(sent)} sent again. ${ended}`;
  };
  return (
    <Asking
      act={all}
      action="Redrive all"
      done={done}
      preview={async () => {
        const { matched } = await ask({ ...which, dry_run: true });
        const those = reason + keyPrefix === "" ? "" : "that match ";
        return { number: matched, words: `${count(matched)} dead letters ${those}wait to be sent again.` };
      }}
      previewOf={reason}
    >
      <Text mb={3}>
        All dead letters of {group} {keyPrefix && `whose key begins with ${keyPrefix} `}are sent again, each
        once. Leave this dialog open until it has finished: closing the page stops it, and another redrive
        does the rest.
      </Text>
      <Text as="label" display="block" fontSize="sm" mb={2}>
        Only those whose reason contains
        <Input name="reason" onChange={(event) => setReason(event.target.value)} value={reason} />
      </Text>
      <Text as="label" display="block" fontSize="sm">
        At most this many a second (empty: no limit)
        <Input
          min={0.01}
          name="rate"
          onChange={(event) => setRate(event.target.value)}
          step="any"
          type="number"
          value={rate}
        />
      </Text>
    </Asking>
  );
}
