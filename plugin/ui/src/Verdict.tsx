// The first line of every view: whether all is well, and if not, what is wrong and where it is mended.
import { Badge, Button, Flex, List as ItemList, Text } from "@chakra-ui/react";
import { Link } from "react-router-dom";
import { type Schemas, get } from "./api";
import { type Change, useAddress } from "./address";
import { count, many, span } from "./format";
import { EVERY_SECONDS, useAnswer, useBroker } from "./queries";
import { TEXT } from "./texts";

type Pulse = Schemas["Pulse"];
/** A sentence, and the button that leads to its cure. */
export type Problem = { button: string; to: Change; view: string; words: string };

const WATCHERS_SECONDS = 60;
const SILENT_SECONDS = 10;

/** Whether a wheel has stopped, though it is connected: one that turns asks the database twice a second. */
export const isSilent = (activeAt: string, nowAt: string) =>
  Date.parse(nowAt) - Date.parse(activeAt) > SILENT_SECONDS * 1000;

/** As in the alert rule: releases that are later than this. */
const LATE_SECONDS = 1;

type FaultWords = (fault: Schemas["Fault"], since: string) => Problem;

/** The sentence of each kind of fault that the broker's numbers show. */
const FAULTS: Record<Schemas["Fault"]["kind"], FaultWords> = {
  abandoned: ({ group, number, topic }, since) => ({
    button: TEXT.showTheGroup,
    to: { sort: "lag" },
    view: "groups",
    words: TEXT.hasTakenNothingForAndKeeps(group, topic, since, count(number ?? 0)),
  }),
  dead_letters: ({ group, number, topic }) => ({
    button: TEXT.showDeadLetters,
    to: { group, topic },
    view: "dead",
    words: TEXT.hasDeadLetters(group, many(number ?? 0, TEXT.deadLetter)),
  }),
  dropped_soon: ({ group, number, topic }) => ({
    button: TEXT.showDeadLetters,
    to: { group, topic },
    view: "dead",
    words: TEXT.areDroppedWithinADay(many(number ?? 0, TEXT.deadLetter), group),
  }),
  lags: ({ group, number }, since) => ({
    button: TEXT.showTheGroup,
    to: { sort: "lag" },
    view: "groups",
    words: TEXT.doesNotKeepUp(group, count(number ?? 0), since),
  }),
  leases_expire: ({ group, number, topic }) => ({
    button: TEXT.showLeases,
    to: { group, topic },
    view: "leases",
    words: TEXT.leasesRanOut(many(number ?? 0, TEXT.nounLease), group),
  }),
  takes_nothing: ({ group, number }, since) => ({
    button: TEXT.showTheGroup,
    to: { sort: "lag" },
    view: "groups",
    words: TEXT.noneTakenFor(group, count(number ?? 0), since),
  }),
  upkeep_held_up: (_, since) => ({
    button: TEXT.showWhoHoldsIt,
    to: {},
    view: "overview",
    words: TEXT.upkeepHeldUpFor(since),
  }),
  upkeep_overdue: (_, since) => ({
    button: TEXT.showTheWheelsOf,
    to: {},
    view: "overview",
    words: TEXT.upkeepWasLastDone(since),
  }),
};

const ago = (at: string | null | undefined, nowAt: string) =>
  at ? span((Date.parse(nowAt) - Date.parse(at)) / 1000) : TEXT.overAnHour;

const others = (topics: number, hasMore: boolean) => {
  const words = many(topics, TEXT.otherTopic);
  return TEXT.andOtherTopics(hasMore ? TEXT.atLeastOf(words) : words);
};

/** What is wrong with the wheels, and with what they release. */
function* ofWheels({ late, now_at, overdue, overdue_has_more, wheels }: Pulse): Generator<Problem> {
  const showWheels = { button: TEXT.showTheWheelsOf, to: {}, view: "overview" };
  if (wheels.length === 0) yield { ...showWheels, words: TEXT.noWheelRunning };
  for (const one of wheels.filter((each) => each.active_at !== null && isSilent(each.active_at, now_at)))
    yield { ...showWheels, words: TEXT.stoppedResponding(one.name, ago(one.active_at, now_at)) };
  const [first] = overdue;
  if (first)
    yield {
      button: TEXT.showMessages,
      to: { topic: first.topic },
      view: "messages",
      words:
        TEXT.overdueSince(first.topic, ago(first.due_at, now_at)) +
        (overdue.length > 1 ? others(overdue.length - 1, overdue_has_more) : ""),
    };
  if (late && late.p99_seconds > LATE_SECONDS)
    yield {
      button: TEXT.showLateness,
      to: { topic: late.topic },
      view: "overview",
      words: TEXT.releasedLate(late.topic, span(late.p99_seconds)),
    };
}

/** All that is wrong, a sentence each. */
export function problemsOf(pulse: Pulse, watchers: Schemas["Watcher"][]): Problem[] {
  const faults = (pulse.faults ?? []).map((fault) => {
    const problem = FAULTS[fault.kind](fault, ago(fault.since_at, pulse.groups_at ?? pulse.now_at));
    const others =
      fault.others > 0 && fault.group !== null
        ? TEXT.andOtherGroups(many(fault.others, TEXT.otherGroup))
        : "";
    return { ...problem, words: problem.words + others };
  });
  const mute = watchers.filter((one) => one.problem !== null);
  const watching = mute.slice(0, 1).map((one) => ({
    button: TEXT.showWatchers,
    to: {},
    view: "watchers",
    words:
      TEXT.cannotRingFor(one.name, one.group) +
      (mute.length > 1 ? TEXT.andOtherWatchers(many(mute.length - 1, TEXT.otherWatcher)) : ""),
  }));
  return [...ofWheels(pulse), ...faults, ...watching];
}

/** The watchers of a broker, which Airflow's own database has. */
const watchersQuestion = [
  ["watchers"],
  (signal: AbortSignal) => get<Schemas["Watchers"]>("watchers", {}, signal),
] as const;

export function Verdict({ broker }: { broker: string }) {
  const address = useAddress();
  const { data: pulse, error } = useBroker(broker, "pulse", {}, EVERY_SECONDS);
  const { data } = useAnswer(...watchersQuestion, WATCHERS_SECONDS);
  // A view that fails says why.
  if (!pulse || error) return null;
  const watchers = data?.watchers.filter((one) => one.connection_id === broker) ?? [];
  const problems = problemsOf(pulse, watchers);
  // All is well where all was read.
  const isWhole = pulse.faults !== null && pulse.groups_to === null && data !== undefined;
  if (problems.length === 0)
    return (
      <Text aria-label={TEXT.verdict} as="p" mb={2} role="status">
        <Badge colorPalette={isWhole ? "green" : "gray"} size="md">
          {isWhole ? TEXT.allOnTime : TEXT.notAllNumbersAreRead}
        </Badge>
      </Text>
    );
  return (
    <Flex aria-label={TEXT.verdict} as="section" direction="column" gap={1} mb={3} role="region">
      <Text fontWeight="bold">{many(problems.length, TEXT.nounProblem)}</Text>
      <ItemList.Root gap={1} listStyle="none">
        {problems.map(({ button, to, view, words }) => (
          <ItemList.Item alignItems="center" display="flex" flexWrap="wrap" gap={2} key={words}>
            <Badge colorPalette="red" css={{ whiteSpace: "normal" }} size="md">
              {words}
            </Badge>
            <Button asChild size="xs" variant="outline">
              <Link to={address.linkTo(view, to)}>{button}</Link>
            </Button>
          </ItemList.Item>
        ))}
      </ItemList.Root>
    </Flex>
  );
}
