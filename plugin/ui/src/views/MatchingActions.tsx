// What may be done with all waiting messages that match a filter.
import { Button, Flex, List, Text } from "@chakra-ui/react";
import { useState } from "react";
import { Failure, type Schemas, post } from "../api";
import { Asking } from "../Asking";
import { fewer } from "../fewer";
import { count, exactInstant, many } from "../format";
import { IN_AN_HOUR, InstantField } from "../InstantField";
import { TEXT } from "../texts";
import { useZone } from "../zone";

/** Up to this many are counted before they are recalled or moved. */
const COUNTED = 1_000_000;

export type Where = Record<"due_from" | "due_until" | "key_prefix" | "state" | "tag" | "topic", string>;

/** What narrows the messages; these actions are on waiting ones, whatever states are listed. */
export const criteria = (where: Where) =>
  Object.fromEntries(Object.entries(where).filter(([name, value]) => name !== "state" && value !== ""));

/** What the filter says, for those who are about to act on all that match. */
function InWords({ where }: { where: Where }) {
  const zone = useZone();
  const said = [
    TEXT.onTopic(where.topic),
    where.key_prefix && TEXT.withAKeyThatBeginsWith(where.key_prefix),
    where.tag && TEXT.withTheTag(where.tag),
    where.due_from && TEXT.dueFromInOn(exactInstant(where.due_from, zone), zone),
    where.due_until && TEXT.dueBeforeIn(exactInstant(where.due_until, zone), zone),
  ].filter(Boolean);
  return (
    <List.Root mb={3} ml={5}>
      {said.map((one) => (
        <List.Item key={one}>{one}</List.Item>
      ))}
    </List.Root>
  );
}

type Matching = { broker: string; where: Where };

/** The numbers of messages found, and their outcomes, in the portions so far. */
type Sums = { late: number; matched: number; recalled: number };

export function RecallMatching({ broker, where }: Matching) {
  const all = async (dryRun: boolean, after: (sums: Sums) => boolean): Promise<Sums> => {
    const sums = { late: 0, matched: 0, recalled: 0 };
    let place: object = {};
    for (;;) {
      const { due_from, next, ...found } = await post<Schemas["RecalledPortion"]>(
        broker,
        "messages/recall-matching",
        { ...criteria(where), ...place, dry_run: dryRun },
      );
      sums.late += found.already_released;
      sums.matched += found.matched;
      sums.recalled += found.recalled;
      if (!after(sums) || next === null) return sums;
      place = { after: next, due_from };
    }
  };
  return (
    <Asking
      act={async ({ isStopped, previewed, tell }) => {
        let sums: Sums = { late: 0, matched: 0, recalled: 0 };
        let ended = "";
        try {
          await all(false, (so_far) => {
            sums = so_far;
            tell(TEXT.recalledSoFar(count(sums.recalled)));
            return !isStopped();
          });
          if (isStopped()) ended = TEXT.stoppedTheRestAreStillWaiting;
        } catch (error) {
          if (sums.matched === 0 || !(error instanceof Failure)) throw error;
          ended = TEXT.theRestMayStillWaitRecall(error.message);
        }
        return [
          TEXT.someRecalledNeverDelivered(count(sums.recalled)),
          ...(sums.late > 0 ? [TEXT.someAlreadyReleased(count(sums.late))] : []),
          ...(ended ? [ended] : await fewer({ broker, topic: where.topic }, previewed, sums.matched)),
        ].join("\n");
      }}
      action={TEXT.recallAll}
      preview={async (isWanted) => {
        let isAll = true;
        const { late, matched } = await all(true, (sums) => {
          isAll = sums.matched < COUNTED;
          return isAll && isWanted();
        });
        const waiting = matched - late;
        const words = `${isAll ? "" : TEXT.atLeastAtTheBeginning}${many(waiting, TEXT.nounMessage)}`;
        return {
          number: waiting,
          words: TEXT.someWaitNow(words, waiting === 1 ? TEXT.waitsAndMatches : TEXT.waitAndMatch),
        };
      }}
      serious
    >
      <Text>{TEXT.everyMatchIsRecalled}</Text>
      <InWords where={where} />
      <Text>{TEXT.thisCannotBeUndone}</Text>
    </Asking>
  );
}

/** The place where a move of all that match was broken off, and the instant that it moves to. */
type Rest = { after: string; deliver_at: string; of: string };

/** Moves all matching messages to an instant that the user enters, or to now. After a stop it continues at the same
 * place, and moves no message twice. */
export function MoveMatching({
  action,
  broker,
  now = false,
  where,
}: Matching & { action: string; now?: boolean }) {
  const zone = useZone();
  const [to, setTo] = useState<object>(IN_AN_HOUR);
  const [stopped, setStopped] = useState<Rest>();
  const of = JSON.stringify([broker, where]);
  const rest = stopped?.of === of ? stopped : undefined;
  const target = now ? { delay_seconds: 0 } : to;
  const all = async (
    dryRun: boolean,
    after: (sums: { matched: number; moved: number }, rest?: Rest) => boolean,
  ) => {
    const sums = { matched: 0, moved: 0 };
    let place: object = rest ? { after: rest.after, deliver_at: rest.deliver_at } : target;
    for (;;) {
      const { deliver_at, matched, moved, next } = await post<Schemas["MovedPortion"]>(
        broker,
        "messages/reschedule-matching",
        { ...criteria(where), ...place, dry_run: dryRun },
      );
      sums.matched += matched;
      sums.moved += moved;
      if (!after(sums, next === null ? undefined : { after: next, deliver_at, of }) || next === null)
        return sums;
      place = { after: next, deliver_at };
    }
  };
  return (
    <Asking
      act={async ({ isStopped, previewed, tell }) => {
        let sums = { matched: 0, moved: 0 };
        let left: Rest | undefined;
        let ended = "";
        try {
          await all(false, (soFar, following) => {
            sums = { ...soFar };
            left = following;
            tell(TEXT.rescheduledSoFar(count(sums.moved)));
            return !isStopped();
          });
          if (left) ended = TEXT.stoppedTheRestAreUnchangedGoes(action);
        } catch (error) {
          if (sums.matched === 0 || !(error instanceof Failure)) throw error;
          ended = TEXT.continuesWithTheRest(error.message, action);
        }
        setStopped(left);
        const others = sums.matched - sums.moved;
        return [
          TEXT.someRescheduled(count(sums.moved)),
          ...(others > 0 ? [TEXT.notReleasedRecalledOrMovedBy(count(others))] : []),
          ...(ended ? [ended] : await fewer({ broker, topic: where.topic }, previewed, sums.matched)),
        ].join("\n");
      }}
      action={action}
      preview={async (isWanted) => {
        let isAll = true;
        const { matched } = await all(true, (sums) => {
          isAll = sums.matched < COUNTED;
          return isAll && isWanted();
        });
        const words = `${isAll ? "" : TEXT.atLeastAtTheBeginning}${many(matched, TEXT.nounMessage)}`;
        const state =
          matched === 1
            ? rest
              ? TEXT.isLeft
              : TEXT.waitsAndMatchesNow
            : rest
              ? TEXT.areLeft
              : TEXT.waitAndMatchNow;
        return { number: matched, words: `${words} ${state}.` };
      }}
      previewOf={JSON.stringify([rest, target])}
    >
      <Text>{now ? TEXT.everyMatchIsDeliveredAtOnce : TEXT.everyMatchIsDeliveredAtAnotherInstant}</Text>
      <InWords where={where} />
      <Text mb={3}>{TEXT.theirIdsChange}</Text>
      {rest ? (
        <Flex align="center" gap={2} role="note">
          <Text>
            {TEXT.itWasInterrupted}
            {now ? "" : TEXT.toAnInstant(exactInstant(rest.deliver_at, zone), zone)}.
          </Text>
          <Button onClick={() => setStopped(undefined)} size="xs" variant="outline">
            {TEXT.startOver}
          </Button>
        </Flex>
      ) : (
        !now && <InstantField choose={setTo} />
      )}
    </Asking>
  );
}
