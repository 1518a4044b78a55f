import { Box, Button, Flex, Grid, Text } from "@chakra-ui/react";
import { useState } from "react";
import { type Schemas, addressOf, ofBroker } from "../api";
import { useAddress } from "../address";
import { count, many } from "../format";
import { Answered } from "../Answered";
import { Consumer, GroupLink, MessageLink, TopicLink } from "../links";
import { FactList, Section, Warning, When } from "../parts";
import { State } from "../states";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { AnswerRun } from "../AnswerRun";
import { EditAndSend, isEditable } from "../EditAndSend";
import { RedriveOne } from "./DeadLetterActions";
import { ReleaseLease } from "../ReleaseLease";
import { RetryNow } from "../RetryNow";
import { Story } from "./Story";
import { heirOf, kindOf } from "../story";
import { DeliverNow, Recall, Reschedule } from "./MessageActions";
import { stateOf } from "./Messages";
import { TEXT } from "../texts";

const column = columnsOf<Schemas["HistoryEntry"]>();

/** The state of an event, with a link to the message that took the place of this one. */
function EntryState({ entry, one }: { entry: Schemas["HistoryEntry"]; one: Schemas["OneMessage"] }) {
  const kind = kindOf(entry, one.edited_to);
  const heir = heirOf(entry, one);
  return (
    <>
      <State of={kind} />
      {heir && (
        <>
          {TEXT.asAMessage}
          <MessageLink id={heir} />
        </>
      )}
    </>
  );
}

const columns = (one: Schemas["OneMessage"]) => [
  column.accessor("state", {
    cell: ({ row: { original: entry } }) => <EntryState entry={entry} one={one} />,
    header: TEXT.state,
  }),
  column.accessor("at", {
    cell: ({ row: { original: entry } }) => <When at={entry.at} nowAt={one.now_at} />,
    header: TEXT.at,
  }),
  column.accessor("until_at", {
    cell: ({ row: { original: entry } }) => <When at={entry.until_at} nowAt={one.now_at} />,
    header: TEXT.until,
  }),
  column.accessor("consumer_group", {
    cell: ({ row: { original: entry } }) =>
      entry.consumer_group !== null && <GroupLink group={entry.consumer_group} topic={one.topic} />,
    header: TEXT.group,
  }),
  column.accessor("attempt", { header: TEXT.attempt, ...NUMBER }),
  column.accessor("consumer", {
    cell: ({ row: { original: entry } }) => <Consumer name={entry.consumer} />,
    header: TEXT.consumer,
  }),
  column.accessor("reason", {
    cell: ({ row: { original: entry } }) =>
      entry.reason && (
        <Text css={{ overflowWrap: "anywhere" }} whiteSpace="pre-wrap">
          {entry.reason}
        </Text>
      ),
    header: TEXT.reason,
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
              {TEXT.theMessageWasMovedAndThis} <MessageLink id={one.message_id} />.
            </Warning>
          )}
          <Section
            extra={
              mayAct &&
              stateOf(one) === "waiting" && (
                <Flex gap={2} wrap="wrap">
                  {one.awaits_answer && <AnswerRun broker={broker} id={one.message_id} keyOfWait={one.key} />}
                  <Recall broker={broker} ids={[one.message_id]} />
                  <Reschedule broker={broker} ids={[one.message_id]} />
                  <DeliverNow broker={broker} ids={[one.message_id]} />
                </Flex>
              )
            }
            title={one.key === null ? TEXT.message : TEXT.messageOfKey(one.key)}
          >
            <Story
              actionsOf={({ group, last }) =>
                mayAct &&
                group !== null &&
                last && <EntryActions broker={broker} entry={last} group={group} one={one} />
              }
              one={one}
            />
          </Section>
          <Grid columnGap={4} templateColumns={{ base: "minmax(0, 1fr)", lg: "repeat(2, minmax(0, 1fr))" }}>
            <Section title={TEXT.details}>
              <Facts one={one} />
            </Section>
            <Section
              extra={one.body && <BodyActions body={one.body} broker={broker} id={one.message_id} />}
              title={TEXT.body}
            >
              <BodyText body={one.body} />
            </Section>
          </Grid>
          <Section title={TEXT.history}>
            <History one={one} />
            <Actions broker={broker} id={one.message_id} />
          </Section>
        </>
      )}
    </Answered>
  );
}

function History({ one }: { one: Schemas["OneMessage"] }) {
  return (
    <Rows
      columns={[
        ...columns(one),
        one.moved_from !== null &&
          column.accessor("known_as", {
            cell: ({ row: { original: entry } }) => <MessageLink id={entry.known_as} />,
            header: TEXT.knownAs,
          }),
      ]}
      empty={TEXT.noEventsAreKnown}
      keyOf={(_, index) => `${index}`}
      label={TEXT.history}
      rows={one.history}
    />
  );
}

const action = columnsOf<Schemas["Action"]>();

const actionColumns = [
  action.accessor("at", { cell: ({ row: { original: one } }) => <When at={one.at} />, header: TEXT.actedAt }),
  action.accessor("user", { header: TEXT.user }),
  action.accessor("action", { header: TEXT.action }),
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
        label={TEXT.actionsOfUsers}
        rows={data.actions}
      />
    </Box>
  );
}

/** The states of a message in a group in which a user can do something. */
const LAST = { dead: "DLQ", held: "Inflight", waiting: "WaitingRetry" };

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

function Facts({ one }: { one: Schemas["OneMessage"] }) {
  const facts: [string, React.ReactNode][] = [
    [TEXT.topic, <TopicLink key="topic" topic={one.topic} />],
    [TEXT.due, <When at={one.deliver_at} key="due" nowAt={one.now_at} />],
    ...(one.asked_at === null
      ? []
      : [[TEXT.askedFor, <When at={one.asked_at} key="asked" />] as [string, React.ReactNode]]),
    [TEXT.sent, <When at={one.born_at} key="born" nowAt={one.now_at} />],
    ...(one.sent_by_task === null
      ? []
      : [[TEXT.sentBy, <Consumer key="sender" name={one.sent_by_task} />] as [string, React.ReactNode]]),
    ...(one.awaits_answer
      ? [[TEXT.waitsFor, TEXT.anAnswerToTheKey(one.key)] as [string, React.ReactNode]]
      : []),
    [TEXT.tag, one.tag ?? "–"],
    [TEXT.messageGroup, one.message_group ?? "–"],
    ...(typeof one.properties["edited_from"] === "string"
      ? [
          [TEXT.editedFrom, <MessageLink id={one.properties["edited_from"]} key="edited" />] as [
            string,
            React.ReactNode,
          ],
        ]
      : []),
    [TEXT.properties, Object.keys(one.properties).length > 0 ? JSON.stringify(one.properties) : "–"],
    [
      TEXT.id,
      <Text fontFamily="mono" fontSize="xs" key="id">
        {one.message_id}
      </Text>,
    ],
    ...(one.moved_from === null
      ? []
      : [[TEXT.sentAs, <MessageLink id={one.moved_from} key="origin" />] as [string, React.ReactNode]]),
    ...(one.replaced_by === null
      ? []
      : [[TEXT.replacedBy, <MessageLink id={one.replaced_by} key="heir" />] as [string, React.ReactNode]]),
  ];
  return <FactList facts={facts} />;
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
          {copied ? TEXT.copied : TEXT.copy}
        </Button>
      )}
      <Button asChild size="xs" variant="outline">
        <a download href={addressOf(ofBroker(broker, `messages/${id}/body`)).href}>
          {TEXT.download}
        </a>
      </Button>
    </Flex>
  );
}

function BodyText({ body }: { body: Schemas["Body"] | null }) {
  if (body === null) {
    return <Text color="fg.muted">{TEXT.youMayNotReadBodiesIt}</Text>;
  }
  return (
    <>
      <Text color="fg.muted" fontSize="sm" mb={2}>
        {many(body.size_bytes, TEXT.nounByte)}
        {TEXT.asAmong}
        {body.kind}
        {body.shown_bytes < body.size_bytes && TEXT.theFirstAreShown(count(body.shown_bytes))}
      </Text>
      <Box
        aria-label={TEXT.body}
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
