import { Box, Button, Flex, Input, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Failure, type Schemas, addressOf, ofBroker, post } from "../api";
import { useAddress } from "../address";
import { Asking, type Course } from "../Asking";
import { count, exactInstant, many } from "../format";
import { Selection, chooser, counted, useChoice } from "../choosing";
import { Filters } from "../Filters";
import {
  Answered,
  Filter,
  InstantFilter,
  MessageLink,
  PageLink,
  Pages,
  Section,
  Shown,
  Warning,
  When,
} from "../parts";
import { useBroker } from "../queries";
import { NUMBER, Rows, columnsOf } from "../Rows";
import { isInstant, useZone } from "../zone";
import { GroupsLeftOut } from "./Groups";

const AT_ONCE = 500;
const FORMATS = [
  ["csv", "CSV"],
  ["jsonl", "JSON lines"],
];

type Rights = { mayAct: boolean; mayReadBodies: boolean };

/** The criteria of the list, under the names that the API has for them. */
type Where = Record<
  "dead_from" | "dead_until" | "group" | "key_prefix" | "reason_contains" | "reason_lacks" | "topic",
  string
>;

export function DeadLetters({ broker, mayAct, mayReadBodies }: Rights & { broker: string }) {
  const address = useAddress();
  const group = address.of("group");
  const where: Where = {
    dead_from: address.of("from"),
    dead_until: address.of("until"),
    group,
    key_prefix: address.of("key"),
    reason_contains: address.of("reason"),
    reason_lacks: address.of("lacks"),
    topic: address.of("topic"),
  };
  const isUnderstood = [where.dead_from, where.dead_until].every((at) => at === "" || isInstant(at));
  return (
    <Section title="Dead letters by topic, the oldest first">
      <Filters names={["group", "topic", "key", "reason", "lacks", "from", "until"]}>
        <Filter label="Group" name="group" />
        <Filter label="Topic" name="topic" placeholder="all" />
        <Filter label="Key begins with" name="key" />
        <Filter label="Reason contains" name="reason" />
        <Filter label="Reason does not contain" name="lacks" />
        <InstantFilter label="Dead from" name="from" />
        <InstantFilter label="Dead before" name="until" />
      </Filters>
      {group === "" ? (
        <Choices broker={broker} />
      ) : isUnderstood ? (
        <>
          <Reasons broker={broker} mayAct={mayAct} where={where} />
          <List broker={broker} mayAct={mayAct} mayReadBodies={mayReadBodies} where={where} />
        </>
      ) : (
        <Warning>The filter is not understood, so nothing is listed. Correct it first.</Warning>
      )}
    </Section>
  );
}

const ofGroup = columnsOf<Schemas["GroupNumbers"]>();

const GROUP_COLUMNS = [
  ofGroup.accessor("group", {
    cell: ({ row: { original: one } }) => (
      <PageLink to={{ group: one.group, topic: one.topic }} view="dead">
        {one.group}
      </PageLink>
    ),
    header: "Group",
  }),
  ofGroup.accessor("topic", { header: "Topic" }),
  ofGroup.accessor("dead", {
    cell: ({ row: { original: one } }) => count(one.dead),
    header: "Dead letters",
    ...NUMBER,
  }),
  ofGroup.accessor("dropped_soon", {
    cell: ({ row: { original: one } }) => count(one.dropped_soon),
    header: "Dropped within a day",
    ...NUMBER,
  }),
];

/** The groups that have dead letters, those with the most first, to choose from. */
function Choices({ broker }: { broker: string }) {
  const answer = useBroker(broker, "groups", { sort: "dead" });
  return (
    <Answered answer={answer} asOf={(page) => page.now_at}>
      {(page) => {
        const some = page.groups.filter((one) => one.dead > 0);
        return (
          <>
            <GroupsLeftOut to={page.groups_to} />
            <Rows
              columns={GROUP_COLUMNS}
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

const ofReason = columnsOf<Schemas["DeadLetterReason"]>();

const reasonColumns = ({ dead_from, dead_until, group, topic }: Where) => [
  ofReason.accessor("reason", {
    cell: ({ row: { original: one } }) =>
      one.reason === null ? (
        "–"
      ) : (
        <PageLink
          to={{ from: dead_from, group, reason: one.reason.slice(0, 200), topic, until: dead_until }}
          view="dead"
        >
          {one.reason}
        </PageLink>
      ),
    header: "Reason",
  }),
  ofReason.accessor("messages", {
    cell: ({ row: { original: one } }) => count(one.messages),
    header: "Dead letters",
    ...NUMBER,
  }),
  ofReason.accessor("first_dead_at", {
    cell: ({ row: { original: one } }) => <When at={one.first_dead_at} />,
    header: "First",
  }),
  ofReason.accessor("last_dead_at", {
    cell: ({ row: { original: one } }) => <When at={one.last_dead_at} />,
    header: "Last",
  }),
];

/** Those of the criteria that are set. */
const given = (where: Partial<Where>) =>
  Object.fromEntries(Object.entries(where).filter(([, value]) => value));

/** The reasons of the group's open dead letters of that time, each with its own actions. */
function Reasons({ broker, mayAct, where }: { broker: string; mayAct: boolean; where: Where }) {
  const { dead_from, dead_until, group, topic } = where;
  const those = { dead_from, dead_until, group, topic };
  const answer = useBroker(broker, "dead-letter-reasons", those);
  const zone = useZone();
  const when = [
    dead_from && ` from ${exactInstant(dead_from, zone)}`,
    dead_until && ` before ${exactInstant(dead_until, zone)}`,
  ].join("");
  const question = (what: string) =>
    `All dead letters of ${group} with this reason${when && `, dead${when} in ${zone},`} are ${what}:`;
  // The list below says that the group or the topic is unknown.
  if (answer.error?.status === 404) return null;
  return (
    <Answered answer={answer}>
      {({ reasons }) =>
        reasons.length > 0 && (
          <Box mb={5}>
            {reasons.some((one) => !one.complete) && (
              <Text color="fg.muted" fontSize="sm">
                Of the oldest 20 000 on each topic; there are more.
              </Text>
            )}
            <Rows
              columns={[
                ...reasonColumns(where),
                mayAct &&
                  ofReason.display({
                    cell: ({ row: { original: one } }) =>
                      one.reason !== null && (
                        <Flex gap={1} wrap="wrap">
                          <OnAll
                            action="Redrive"
                            broker={broker}
                            question={question("sent again, each once")}
                            which={{ ...given(those), reason: one.reason }}
                          />
                          <OnAll
                            action="Discard"
                            broker={broker}
                            question={question("discarded, and never sent again")}
                            which={{ ...given(those), reason: one.reason }}
                          />
                        </Flex>
                      ),
                    enableSorting: false,
                    header: "Actions",
                    id: "actions",
                  }),
              ]}
              empty=""
              keyOf={(one) => one.reason ?? ""}
              label="Reasons"
              rows={reasons}
              sorts
            />
          </Box>
        )
      }
    </Answered>
  );
}

/** Acts on all dead letters of one reason, by portions. */
function OnAll({
  action,
  broker,
  question,
  which,
}: {
  action: "Discard" | "Redrive";
  broker: string;
  question: string;
  which: { reason: string };
}) {
  const isRedrive = action === "Redrive";
  const words = isRedrive ? "sent again" : "discarded";
  const ask = async (more: object): Promise<{ found: number; number: number }> => {
    if (isRedrive) {
      const path = ofBroker(broker, "dead-letters/redrive");
      const { matched, redriven } = await post<Schemas["Redriven"]>(path, { ...which, ...more });
      return { found: matched, number: redriven };
    }
    const path = ofBroker(broker, "dead-letters/discard");
    const { discarded } = await post<Schemas["Discarded"]>(path, { ...which, ...more });
    return { found: discarded, number: discarded };
  };
  return (
    <Asking
      act={async ({ isStopped, tell }) => {
        let sum = 0;
        try {
          for (;;) {
            const { number } = await ask({ dry_run: false, max_messages: AT_ONCE });
            sum += number;
            if (number < AT_ONCE) return `${count(sum)} ${words}.`;
            tell(`${count(sum)} ${words} …`);
            if (isStopped()) return `${count(sum)} ${words}. Stopped: the others are unchanged.`;
          }
        } catch (error) {
          if (sum === 0 || !(error instanceof Failure)) throw error;
          return `${count(sum)} ${words}. ${error.message} ${action} again for the rest.`;
        }
      }}
      action={action}
      quiet
      preview={async () => {
        const { found } = await ask({ dry_run: true });
        return { number: found, words: `${many(found, "dead letter")} ${found === 1 ? "has" : "have"} it.` };
      }}
      serious={!isRedrive}
    >
      <Text>{question}</Text>
      <Text fontWeight="bold" lineClamp={5}>
        {which.reason}
      </Text>
      {!isRedrive && <Text>This cannot be undone.</Text>}
    </Asking>
  );
}

const ofLetter = columnsOf<Schemas["ListedDeadLetter"]>();

const letterColumns = (nowAt: string) => [
  ofLetter.accessor("dead_at", {
    cell: ({ row: { original: one } }) => <When at={one.dead_at} />,
    header: "Dead since",
  }),
  ofLetter.accessor("topic", { header: "Topic" }),
  ofLetter.accessor("key", { header: "Key" }),
  ofLetter.accessor("attempt", { header: "Attempts", ...NUMBER }),
  ofLetter.accessor("reason", {
    cell: ({ row: { original: one } }) => (
      <Text lineClamp={3} title={one.reason ?? ""}>
        {one.reason ?? ""}
      </Text>
    ),
    header: "Reason",
  }),
  ofLetter.accessor("kept_until", {
    cell: ({ row: { original: one } }) => <When at={one.kept_until} nowAt={nowAt} />,
    header: "Kept until",
  }),
  ofLetter.accessor("message_id", {
    cell: ({ row: { original: one } }) => <MessageLink id={one.message_id} />,
    header: "Id",
  }),
];

function List({ broker, mayAct, mayReadBodies, where }: Rights & { broker: string; where: Where }) {
  const after = useAddress().of("after");
  const { group, topic } = where;
  const answer = useBroker(broker, "dead-letters", { ...where, after, redriven: false });
  const total = useBroker(broker, "dead-letters/count", where);
  const letters = answer.data?.dead_letters ?? [];
  const choice = useChoice(letters.map((one) => one.message_id));
  const whose = given({ group, topic });
  const ask = (more: object) =>
    post<Schemas["Redriven"]>(ofBroker(broker, "dead-letters/redrive"), { ...whose, ...more });
  const done = choice.clear;
  return (
    <Answered answer={answer} asOf={(page) => page.now_at}>
      {({ next, now_at }) => (
        <>
          {mayReadBodies && letters.length > 0 && (
            <Flex align="center" gap={2} mb={3} wrap="wrap">
              <Text fontSize="sm">All that match the filter, with their bodies:</Text>
              {FORMATS.map(([format, words]) => (
                <Button asChild key={format} size="xs" variant="outline">
                  <a
                    download
                    href={
                      addressOf(ofBroker(broker, "dead-letters/export"), {
                        ...where,
                        format,
                        redriven: false,
                      }).href
                    }
                  >
                    Export {words}
                  </a>
                </Button>
              ))}
            </Flex>
          )}
          {total.data && (
            <Text fontSize="sm" mb={2}>
              {count(letters.length)} of {counted(total.data)}
            </Text>
          )}
          {mayAct && (
            <Selection
              actions={
                <>
                  <Asking
                    act={async () => {
                      const redriven = await ask({ dry_run: false, message_ids: choice.now });
                      return `${count(redriven.redriven)} sent again. They come to the group at once.`;
                    }}
                    action="Redrive"
                    done={done}
                  >
                    <Text>
                      Sends {many(choice.now.length, "dead letter")} to {group} again, each with its id.
                    </Text>
                  </Asking>
                  <Asking
                    act={async () => {
                      const { discarded } = await post<Schemas["Discarded"]>(
                        ofBroker(broker, "dead-letters/discard"),
                        { ...whose, dry_run: false, message_ids: choice.now },
                      );
                      return `${count(discarded)} discarded.`;
                    }}
                    action="Discard"
                    done={done}
                    serious
                  >
                    <Text>
                      Discards {many(choice.now.length, "dead letter")} of {group}, never to be sent again.
                      This cannot be undone.
                    </Text>
                  </Asking>
                </>
              }
              actionsOnAll={
                <RedriveAll
                  ask={(more) => ask({ ...given({ ...where, reason_contains: "" }), ...more })}
                  key={where.reason_contains}
                  where={where}
                />
              }
              choice={choice}
              of={JSON.stringify([broker, where])}
              total={total.data}
            />
          )}
          <Rows
            columns={[mayAct && chooser<Schemas["ListedDeadLetter"]>(choice), ...letterColumns(now_at)]}
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
export const RedriveOne = ({ broker, group, id }: { broker: string; group: string; id: string }) => (
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
  >
    <Text>The dead letter is sent to {group} again, with its id.</Text>
  </Asking>
);

function RedriveAll({
  ask,
  where,
}: {
  ask: (more: object) => Promise<Schemas["Redriven"]>;
  /** The filter of the list; its reason is the initial value. */
  where: Where;
}) {
  const { dead_from, dead_until, group, key_prefix, reason_lacks } = where;
  const zone = useZone();
  const [reason, setReason] = useState(where.reason_contains);
  const said = [
    key_prefix && `whose key begins with ${key_prefix}`,
    reason_lacks && `whose reason does not contain ${reason_lacks}`,
    dead_from && `dead from ${exactInstant(dead_from, zone)} in ${zone} on`,
    dead_until && `dead before ${exactInstant(dead_until, zone)} in ${zone}`,
  ].filter(Boolean);
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
      preview={async () => {
        const { matched } = await ask({ ...which, dry_run: true });
        const those = reason === "" && said.length === 0 ? "" : "that match ";
        return { number: matched, words: `${many(matched, "dead letter")} ${those}to be sent again.` };
      }}
      previewOf={reason}
    >
      <Text mb={3}>
        All dead letters of {group}
        {said.map((one) => `, ${one}`)}
        {said.length > 0 && ","} are sent again, each once. Leave this dialog open until it has finished:
        closing the page stops it, and another redrive does the rest.
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
