// What is wrong, in a sentence each with the way to its cure: the worst of each kind for the verdict, the others for the list.
import type { Change } from "./address";
import type { Schemas } from "./api";
import { count, many, span } from "./format";
import { TEXT } from "./texts";

type Pulse = Schemas["Pulse"];
type Fault = Schemas["Fault"];
type Watcher = Schemas["Watcher"];
/** A sentence, and the button that leads to its cure. */
export type Problem = {
  button: string;
  /** The part of the view that has the cure, of a view with several. */
  part?: string;
  to: Change;
  view: string;
  words: string;
};

const SILENT_SECONDS = 10;

/** Whether a wheel has stopped, though it is connected: one that turns asks the database twice a second. */
export const isSilent = (activeAt: string, nowAt: string) =>
  Date.parse(nowAt) - Date.parse(activeAt) > SILENT_SECONDS * 1000;

/** As in the alert rule: releases that are later than this. */
export const LATE_SECONDS = 1;

type FaultWords = (fault: Fault, since: string) => Problem;

/** The sentence of each kind of fault that the broker's numbers show. */
const FAULTS: Record<Fault["kind"], FaultWords> = {
  abandoned: ({ group, number, topic }, since) => ({
    button: TEXT.showTheGroup,
    to: { group, topic },
    view: "group",
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
  lags: ({ group, number, topic }, since) => ({
    button: TEXT.showTheGroup,
    to: { group, topic },
    view: "group",
    words: TEXT.doesNotKeepUp(group, count(number ?? 0), since),
  }),
  leases_expire: ({ group, number, topic }) => ({
    button: TEXT.showLeases,
    to: { group, topic },
    view: "leases",
    words: TEXT.leasesRanOut(many(number ?? 0, TEXT.nounLease), group),
  }),
  takes_nothing: ({ group, number, topic }, since) => ({
    button: TEXT.showTheGroup,
    to: { group, topic },
    view: "group",
    words: TEXT.noneTakenFor(group, count(number ?? 0), since),
  }),
  upkeep_held_up: (_, since) => ({
    button: TEXT.showWhoHoldsIt,
    part: "upkeep",
    to: {},
    view: "overview",
    words: TEXT.upkeepHeldUpFor(since),
  }),
  upkeep_overdue: (_, since) => ({
    button: TEXT.showTheWheelsOf,
    part: "wheels",
    to: {},
    view: "overview",
    words: TEXT.upkeepWasLastDone(since),
  }),
};

const ago = (at: string | null | undefined, nowAt: string) =>
  at ? span((Date.parse(nowAt) - Date.parse(at)) / 1000) : TEXT.overAnHour;

const overdueProblem = ({ due_at, topic }: Pulse["overdue"][number], nowAt: string): Problem => ({
  button: TEXT.showMessages,
  to: { topic },
  view: "messages",
  words: TEXT.overdueSince(topic, ago(due_at, nowAt)),
});

const faultProblem = (fault: Fault, { groups_at, now_at }: Pulse): Problem =>
  FAULTS[fault.kind](fault, ago(fault.since_at, groups_at ?? now_at));

const watcherProblem = ({ group, name }: Watcher): Problem => ({
  button: TEXT.showWatchers,
  to: {},
  view: "watchers",
  words: TEXT.cannotRingFor(name, group),
});

const others = (topics: number, hasMore: boolean) => {
  const words = many(topics, TEXT.otherTopic);
  return TEXT.andOtherTopics(hasMore ? TEXT.atLeastOf(words) : words);
};

const withMore = (problem: Problem, more: string): Problem => ({ ...problem, words: problem.words + more });

/** What is wrong with the wheels, and with what they release. */
function* ofWheels({ late, now_at, overdue, overdue_has_more, wheels }: Pulse): Generator<Problem> {
  const showWheels = { button: TEXT.showTheWheelsOf, part: "wheels", to: {}, view: "overview" };
  if (wheels.length === 0) yield { ...showWheels, words: TEXT.noWheelRunning };
  for (const one of wheels.filter((each) => each.active_at !== null && isSilent(each.active_at, now_at)))
    yield { ...showWheels, words: TEXT.stoppedResponding(one.name, ago(one.active_at, now_at)) };
  const [first, ...rest] = overdue;
  if (first)
    yield withMore(
      overdueProblem(first, now_at),
      rest.length > 0 ? others(rest.length, overdue_has_more) : "",
    );
  if (late && late.p99_seconds > LATE_SECONDS)
    yield {
      button: TEXT.showTheTopic,
      to: { topic: late.topic },
      view: "topic",
      words: TEXT.releasedLate(late.topic, span(late.p99_seconds)),
    };
}

/** The faults of each kind, the worst one first. */
function byKind(faults: Fault[]): Fault[][] {
  const kinds = new Map<string, Fault[]>();
  for (const one of faults) kinds.set(one.kind, [...(kinds.get(one.kind) ?? []), one]);
  return [...kinds.values()];
}

const isMute = (one: Watcher) => one.problem !== null;

/** The worst problem of each kind, and how many others there are. */
export function problemsOf(pulse: Pulse, watchers: Watcher[]): Problem[] {
  const faults = byKind(pulse.faults ?? []).flatMap(([worst]) =>
    worst === undefined
      ? []
      : withMore(
          faultProblem(worst, pulse),
          worst.others > 0 && worst.group !== null
            ? TEXT.andOtherGroups(many(worst.others, TEXT.otherGroup))
            : "",
        ),
  );
  const [first, ...rest] = watchers.filter(isMute);
  const more = rest.length > 0 ? TEXT.andOtherWatchers(many(rest.length, TEXT.otherWatcher)) : "";
  return [...ofWheels(pulse), ...faults, ...(first ? [withMore(watcherProblem(first), more)] : [])];
}

/** The problems that the verdict counts and does not name: of each kind one in turn. `all` counts unlisted ones, too. */
export function otherProblemsOf(pulse: Pulse, watchers: Watcher[]): { all: number; listed: Problem[] } {
  const faults = byKind(pulse.faults ?? []);
  const kinds = [
    pulse.overdue.slice(1).map((one) => overdueProblem(one, pulse.now_at)),
    ...faults.map((some) => some.slice(1).map((one) => faultProblem(one, pulse))),
    watchers.filter(isMute).slice(1).map(watcherProblem),
  ];
  const longest = Math.max(...kinds.map((some) => some.length));
  const listed = Array.from({ length: longest }, (_, rank) =>
    kinds.flatMap((some) => some[rank] ?? []),
  ).flat();
  const unlisted = faults.reduce((sum, some) => {
    const [worst] = some;
    return sum + (worst?.group == null ? 0 : worst.others - (some.length - 1));
  }, 0);
  return { all: listed.length + unlisted, listed };
}
