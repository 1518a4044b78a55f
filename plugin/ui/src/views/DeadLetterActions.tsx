// What may be done with dead letters: with selected ones in one transaction, with all that match by portions.
import { Input, Text } from "@chakra-ui/react";
import { type ReactNode, useRef, useState } from "react";
import { type Schemas, post, refusal } from "../api";
import { Asking } from "../Asking";
import { actOnAll } from "../actOnAll";
import { fewer } from "../fewer";
import { count, exactInstant, many } from "../format";
import { useZone } from "../zone";
import { TEXT } from "../texts";

/** The criteria of the list, under the names that the API has for them. */
export type Where = Record<
  "dead_from" | "dead_until" | "group" | "key_prefix" | "reason_contains" | "reason_lacks" | "topic",
  string
>;

/** When the question of an action on all ends: what dies after the list was read, redriven ones among them, is no part
 * of it, however long the question stands and the action lasts. */
export const untilOf = ({ dead_until }: Where, nowAt: string) =>
  dead_until !== "" && Date.parse(dead_until) < Date.parse(nowAt) ? dead_until : nowAt;

/** Those of the criteria that are set. */
export const given = (where: { [Name in keyof Where]?: string | undefined }) =>
  Object.fromEntries(Object.entries(where).filter(([, value]) => value));

const groupAndTopic = ({ group, topic }: Partial<Where>) => given({ group, topic });

/** Acts on a portion of dead letters, or counts them. */
const act = (broker: string, isDiscard: boolean, asked: object) =>
  post<Schemas["DeadLetterPortion"]>(broker, `dead-letters/${isDiscard ? "discard" : "redrive"}`, asked);

/** Sends one dead letter again, from the page of its message. */
export const RedriveOne = ({ broker, group, id }: { broker: string; group: string; id: string }) => (
  <Asking
    act={async () => {
      const { done } = await act(broker, false, { dry_run: false, group, message_ids: [id] });
      return done > 0 ? TEXT.sentAgainItComesToThe : TEXT.nothingToDoItWasSent;
    }}
    action={TEXT.redrive}
  >
    <Text>{TEXT.theDeadLetterIsSentTo(group)}</Text>
  </Asking>
);

type Selected = {
  broker: string;
  /** When the selected ones died: no other time is searched for their ids, however many dead letters there are. */
  died: number[];
  done: () => void;
  ids: string[];
  isDiscard?: boolean;
  whose: { group?: string; topic?: string };
};

export function ActOnSelected({ broker, died, done, ids, isDiscard = false, whose }: Selected) {
  // A list that was read anew meanwhile may show none of them.
  const bounds = died.length > 0 && {
    dead_from: new Date(Math.min(...died)).toISOString(),
    // Instants here have milliseconds, and those of the broker microseconds.
    dead_until: new Date(Math.max(...died) + 1).toISOString(),
  };
  const letters = many(ids.length, TEXT.deadLetter);
  const group = whose.group ?? "";
  return (
    <Asking
      act={async () => {
        const answer = await act(broker, isDiscard, {
          ...whose,
          ...bounds,
          dry_run: false,
          message_ids: ids,
        });
        const others = ids.length - answer.done;
        return [
          TEXT.someDone(count(answer.done), isDiscard ? TEXT.stateDiscarded : TEXT.sentAgain),
          ...(others > 0 ? [TEXT.notSentAgainOrDiscarded(count(others))] : []),
        ].join("\n");
      }}
      action={isDiscard ? TEXT.discard : TEXT.redrive}
      done={done}
      serious={isDiscard}
    >
      <Text>
        {isDiscard
          ? TEXT.discardsOfNeverToBeSent(letters, group)
          : TEXT.sendsToAgainEachWithIts(letters, group)}
      </Text>
    </Asking>
  );
}

type OnAll = {
  action: string;
  broker: string;
  /** Fields below the question. */
  children?: ReactNode;
  /** How many match, in words. */
  count: (matched: number) => string;
  isDiscard?: boolean;
  /** How many a second, as it was typed; the empty string is no limit. */
  perSecond?: string;
  question: ReactNode;
  quiet?: boolean;
  until: string;
  /** The criteria, besides the end of the time. */
  which: Partial<Where> & { reason?: string };
};

/** Acts on all dead letters that meet the criteria. */
export function ActOnAll({
  action,
  broker,
  children,
  count: inWords,
  isDiscard = false,
  perSecond = "",
  question,
  quiet = false,
  until,
  which,
}: OnAll) {
  // That of the question: the list behind may be read anew while it stands.
  const asked = useRef(until);
  const ask = (more: object) => act(broker, isDiscard, { ...which, ...more, dead_until: asked.current });
  return (
    <Asking
      act={(course) => {
        const rate = perSecond === "" ? Infinity : Number(perSecond);
        if (!(rate > 0)) throw refusal("NoRate", TEXT.theRateHasToBeMore);
        const words = isDiscard ? TEXT.stateDiscarded : TEXT.sentAgain;
        const whyFewer = (done: number) => fewer({ broker, ...groupAndTopic(which) }, course.previewed, done);
        return actOnAll(
          (portion) => ask({ ...portion, dry_run: false }),
          rate,
          { action, whyFewer, words },
          course,
        );
      }}
      action={action}
      preview={async () => {
        asked.current = until;
        const { matched } = await ask({ dry_run: true });
        return { number: matched, words: inWords(matched) };
      }}
      previewOf={JSON.stringify(which)}
      quiet={quiet}
      serious={isDiscard}
    >
      {question}
      {isDiscard && <Text>{TEXT.thisCannotBeUndone}</Text>}
      {children}
    </Asking>
  );
}

export function RedriveAll({
  broker,
  until,
  where,
}: {
  broker: string;
  until: string;
  /** The filter of the list; its reason is the initial value. */
  where: Where;
}) {
  const { dead_from, dead_until, group, key_prefix, reason_lacks, topic } = where;
  const zone = useZone();
  const [reason, setReason] = useState(where.reason_contains);
  const [rate, setRate] = useState("");
  const said = [
    topic && TEXT.onTopic(topic),
    key_prefix && TEXT.whoseKeyBeginsWith(key_prefix),
    reason_lacks && TEXT.whoseReasonDoesNotContain(reason_lacks),
    dead_from && TEXT.deadFromInOn(exactInstant(dead_from, zone), zone),
    dead_until && TEXT.deadBeforeIn(exactInstant(dead_until, zone), zone),
  ].filter(Boolean);
  const those = reason === "" && said.length === 0 ? "" : TEXT.thatMatch;
  return (
    <ActOnAll
      action={TEXT.redriveAll}
      broker={broker}
      count={(matched) => TEXT.toBeSentAgain(many(matched, TEXT.deadLetter), those)}
      perSecond={rate}
      question={
        <Text mb={3}>
          {TEXT.allDeadLettersOf}
          {group}
          {said.map((one) => `, ${one}`)}
          {said.length > 0 && ","}
          {TEXT.areSentAgainEachOnce}
        </Text>
      }
      until={until}
      which={given({ ...where, reason_contains: reason })}
    >
      <Text as="label" display="block" fontSize="sm" mb={2}>
        {TEXT.onlyReasonsThatContain}
        <Input name="reason" onChange={(event) => setReason(event.target.value)} value={reason} />
      </Text>
      <Text as="label" display="block" fontSize="sm">
        {TEXT.atMostThisManyASecond}
        <Input
          min={0.01}
          name="rate"
          onChange={(event) => setRate(event.target.value)}
          step="any"
          type="number"
          value={rate}
        />
      </Text>
    </ActOnAll>
  );
}
