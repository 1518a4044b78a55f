import { Box, Button, DataList, Flex, Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, addressOf, ofBroker } from "../api";
import { useAddress } from "../address";
import { count, many } from "../format";
import { Answered, Consumer, MessageLink, PageLink, Section, State, Warning, When } from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { EditAndSend, isEditable } from "../EditAndSend";
import { RedriveOne } from "./DeadLetters";
import { ReleaseLease } from "../ReleaseLease";
import { RetryNow } from "../RetryNow";
import { DeliverNow, Recall, Reschedule, stateOf } from "./Messages";

const column = columnsOf<Schemas["HistoryEntry"]>();

const columns = (nowAt: string) => [
  column.accessor("state", {
    cell: ({ row: { original: entry } }) => <State of={entry.state} />,
    header: "State",
  }),
  column.accessor("at", {
    cell: ({ row: { original: entry } }) => <When at={entry.at} nowAt={nowAt} />,
    header: "At",
  }),
  column.accessor("until_at", {
    cell: ({ row: { original: entry } }) => <When at={entry.until_at} nowAt={nowAt} />,
    header: "Until",
  }),
  column.accessor("consumer_group", {
    cell: ({ row: { original: entry } }) =>
      entry.consumer_group !== null && (
        <PageLink to={{ group: entry.consumer_group }} view="dead">
          {entry.consumer_group}
        </PageLink>
      ),
    header: "Group",
  }),
  column.accessor("attempt", { header: "Attempt", ...NUMBER }),
  column.accessor("consumer", {
    cell: ({ row: { original: entry } }) => <Consumer name={entry.consumer} />,
    header: "Consumer",
  }),
  column.accessor("reason", {
    cell: ({ row: { original: entry } }) => <Text whiteSpace="pre-wrap">{entry.reason ?? ""}</Text>,
    header: "Reason",
  }),
];

export function Message({ broker, mayAct }: { broker: string; mayAct: boolean }) {
  const id = useAddress().of("id");
  const answer = useBroker(broker, "messages/{message_id}", { message_id: id });
  return (
    <Answered answer={answer} asOf={(one) => one.now_at}>
      {(one) => (
        <>
          {one.message_id !== id && (
            <Warning>
              The message was moved, and this is an id that it had before. It now has the id{" "}
              <MessageLink id={one.message_id} />.
            </Warning>
          )}
          <Section
            extra={
              mayAct &&
              stateOf(one) === "waiting" && (
                <Flex gap={2} wrap="wrap">
                  <Recall broker={broker} ids={[one.message_id]} />
                  <Reschedule broker={broker} ids={[one.message_id]} />
                  <DeliverNow broker={broker} ids={[one.message_id]} />
                </Flex>
              )
            }
            title={one.key === null ? "Message" : `Message ${one.key}`}
          >
            <Facts one={one} />
          </Section>
          <Section title="History">
            <History broker={broker} mayAct={mayAct} one={one} />
            <Actions broker={broker} id={one.message_id} />
          </Section>
          <Section
            extra={one.body && <BodyActions body={one.body} broker={broker} id={one.message_id} />}
            title="Body"
          >
            <BodyText body={one.body} />
          </Section>
        </>
      )}
    </Answered>
  );
}

function History({ broker, mayAct, one }: { broker: string; mayAct: boolean; one: Schemas["OneMessage"] }) {
  return (
    <Rows
      columns={[
        ...columns(one.now_at),
        one.moved_from !== null &&
          column.accessor("known_as", {
            cell: ({ row: { original: entry } }) => <MessageLink id={entry.known_as} />,
            header: "Known as",
          }),
        mayAct &&
          Object.values(LAST).some((state) => lastIn(one.history, state).size > 0) &&
          column.display({
            cell: ({ row: { index, original: entry } }) =>
              entry.consumer_group !== null &&
              lastIn(one.history, entry.state).get(entry.consumer_group) === index && (
                <EntryActions broker={broker} entry={entry} group={entry.consumer_group} one={one} />
              ),
            header: "Actions",
            id: "actions",
          }),
      ]}
      empty="No events are known."
      keyOf={(_, index) => `${index}`}
      label="History"
      rows={one.history}
    />
  );
}

const action = columnsOf<Schemas["Action"]>();

const actionColumns = [
  action.accessor("at", { cell: ({ row: { original: one } }) => <When at={one.at} />, header: "Acted at" }),
  action.accessor("user", { header: "User" }),
  action.accessor("action", { header: "Action" }),
];

/** Who acted on the message. */
function Actions({ broker, id }: { broker: string; id: string }) {
  const { data } = useBroker(broker, "messages/{message_id}/actions", { message_id: id });
  if (!data || data.actions.length === 0) return null;
  return (
    <Box mt={4}>
      <Rows
        columns={actionColumns}
        empty=""
        keyOf={(_, index) => `${index}`}
        label="Actions of users"
        rows={data.actions}
      />
    </Box>
  );
}

/** The states of a message in a group in which a user can do something. */
const LAST = { dead: "DLQ", held: "Inflight", waiting: "WaitingRetry" };

/** For each group in which the message is now in a state, the place of that event in the history. */
export function lastIn(history: Schemas["HistoryEntry"][], state: string): Map<string | null, number> {
  const last = new Map(history.map((entry, index) => [entry.consumer_group, index]));
  return new Map([...last].filter(([group, index]) => group !== null && history[index]?.state === state));
}

function EntryActions({
  broker,
  entry,
  group,
  one,
}: {
  broker: string;
  entry: Schemas["HistoryEntry"];
  group: string;
  one: Schemas["OneMessage"];
}) {
  if (entry.state === LAST.waiting)
    return <RetryNow broker={broker} waiting={[{ group, message_id: one.message_id }]} />;
  if (entry.state === LAST.held)
    return <Release broker={broker} entry={entry} group={group} topic={one.topic} />;
  if (entry.state !== LAST.dead) return null;
  return (
    <Flex gap={1} wrap="wrap">
      <RedriveOne broker={broker} group={group} id={one.message_id} />
      {isEditable(one.body) && (
        <EditAndSend
          body={one.body}
          broker={broker}
          group={group}
          id={one.message_id}
          properties={one.properties}
          topic={one.topic}
        />
      )}
    </Flex>
  );
}

/** The lease under which a message is held: that which its consumer took at that instant. */
function Release({
  broker,
  entry,
  group,
  topic,
}: {
  broker: string;
  entry: Schemas["HistoryEntry"];
  group: string;
  topic: string;
}) {
  const { data } = useBroker(broker, "leases", { group, topic });
  const lease = data?.leases.find((one) => one.leased_at === entry.at && one.consumer === entry.consumer);
  return lease ? <ReleaseLease broker={broker} lease={lease} /> : null;
}

/** Where a released message is: its state in each group that has received it. */
export function statesIn(history: Schemas["HistoryEntry"][]): [group: string, state: string][] {
  const last = new Map(history.map((entry) => [entry.consumer_group, entry.state]));
  return [...last].filter((one): one is [string, string] => one[0] !== null);
}

function States({ one }: { one: Schemas["OneMessage"] }) {
  const inGroups = stateOf(one) === "released" ? statesIn(one.history) : [];
  if (inGroups.length === 0) return <State of={stateOf(one)} />;
  return (
    <Flex columnGap={3} rowGap={1} wrap="wrap">
      {inGroups.map(([group, state]) => (
        <Text as="span" key={group}>
          <State of={state} /> in {group}
        </Text>
      ))}
    </Flex>
  );
}

function Facts({ one }: { one: Schemas["OneMessage"] }) {
  const facts: [string, React.ReactNode][] = [
    ["State", <States key="state" one={one} />],
    [
      "Topic",
      <PageLink key="topic" to={{ topic: one.topic }} view="messages">
        {one.topic}
      </PageLink>,
    ],
    ["Due", <When at={one.deliver_at} key="due" nowAt={one.now_at} />],
    ...(one.asked_at === null
      ? []
      : [["Asked for", <When at={one.asked_at} key="asked" />] as [string, React.ReactNode]]),
    ["Sent", <When at={one.born_at} key="born" nowAt={one.now_at} />],
    ...(one.sent_by_task === null
      ? []
      : [["Sent by", <Consumer key="sender" name={one.sent_by_task} />] as [string, React.ReactNode]]),
    ["Tag", one.tag ?? "–"],
    ["Message group", one.message_group ?? "–"],
    ...(typeof one.properties["edited_from"] === "string"
      ? [
          ["Edited from", <MessageLink id={one.properties["edited_from"]} key="edited" />] as [
            string,
            React.ReactNode,
          ],
        ]
      : []),
    ["Properties", Object.keys(one.properties).length > 0 ? JSON.stringify(one.properties) : "–"],
    [
      "Id",
      <Text fontFamily="mono" fontSize="xs" key="id">
        {one.message_id}
      </Text>,
    ],
    ...(one.moved_from === null
      ? []
      : [["Sent as", <MessageLink id={one.moved_from} key="origin" />] as [string, React.ReactNode]]),
    ...(one.replaced_by === null
      ? []
      : [["Replaced by", <MessageLink id={one.replaced_by} key="heir" />] as [string, React.ReactNode]]),
  ];
  return (
    <DataList.Root orientation="horizontal" size="sm">
      {facts.map(([name, value]) => (
        <DataList.Item key={name}>
          <DataList.ItemLabel>{name}</DataList.ItemLabel>
          <DataList.ItemValue css={{ overflowWrap: "anywhere" }}>{value}</DataList.ItemValue>
        </DataList.Item>
      ))}
    </DataList.Root>
  );
}

/** The body as it was sent is a file; as it is shown, if that is all of it, a text to copy. */
function BodyActions({ body, broker, id }: { body: Schemas["Body"]; broker: string; id: string }) {
  const [copied, setCopied] = useState(false);
  // Browsers have a clipboard on secure pages only.
  const clipboard = (navigator as { clipboard?: Clipboard }).clipboard;
  return (
    <Flex gap={2}>
      {clipboard && body.shown_bytes === body.size_bytes && (
        <Button
          onClick={() => {
            void clipboard.writeText(body.text).then(() => {
              setCopied(true);
            });
          }}
          size="xs"
          variant="outline"
        >
          {copied ? "Copied" : "Copy"}
        </Button>
      )}
      <Button asChild size="xs" variant="outline">
        <a download href={addressOf(ofBroker(broker, `messages/${id}/body`)).href}>
          Download
        </a>
      </Button>
    </Flex>
  );
}

function BodyText({ body }: { body: Schemas["Body"] | null }) {
  if (body === null) {
    return (
      <Text color="fg.muted">
        You may not read bodies: it takes the right to read the Airflow connection.
      </Text>
    );
  }
  return (
    <>
      <Text color="fg.muted" fontSize="sm" mb={2}>
        {many(body.size_bytes, "byte")}, as {body.kind}
        {body.shown_bytes < body.size_bytes && `; the first ${count(body.shown_bytes)} are shown`}
      </Text>
      <Box
        aria-label="Body"
        as="pre"
        bg="bg.muted"
        borderRadius="sm"
        fontSize="xs"
        maxH="30rem"
        overflow="auto"
        p={3}
        role="region"
        tabIndex={0}
        whiteSpace="pre-wrap"
      >
        {body.text}
      </Box>
    </>
  );
}
