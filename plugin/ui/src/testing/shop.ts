// What a shop's broker answers: a small answer for every question that the page asks. Tests replace one or two.
import type { Schemas } from "../api";
import type { Reads } from "./page";

export const NOW = "2030-01-05T10:00:00Z";
/** An instant so many minutes from now. */
export const at = (minutes: number) =>
  new Date(Date.parse(NOW) + minutes * 60_000).toISOString().replace(".000", "");
/** The id of a message. */
export const id = (number: number) => number.toString(16).padStart(44, "0");

export const message = (number: number, more: Partial<Schemas["ListedMessage"]> = {}) => ({
  born_at: at(-60),
  deliver_at: at(number),
  key: `order-${number}`,
  message_id: id(number),
  moved_to: null,
  recalled: false,
  released: false,
  replaced_by: null,
  tag: null,
  topic: "orders",
  ...more,
});

export const messages = (
  some: Schemas["ListedMessage"][],
  next: string | null = null,
): Schemas["Messages"] => ({
  messages: some,
  next,
  now_at: NOW,
});

export const group = (more: Partial<Schemas["GroupNumbers"]> = {}): Schemas["GroupNumbers"] => ({
  abandoned_since: null,
  dead: 0,
  dropped_soon: 0,
  group: "ship",
  idle_since: null,
  inflight: 0,
  inflight_is_exact: true,
  kept_bytes: 0,
  kept_messages: 0,
  oldest_deliver_at: null,
  paused_at: null,
  ready: 0,
  topic: "orders",
  waiting_retry: 0,
  ...more,
});

export const topic = (more: Partial<Schemas["TopicNumbers"]> = {}): Schemas["TopicNumbers"] => ({
  message_type: "DELAY",
  next_due_at: at(5),
  released_to: null,
  stragglers: 0,
  topic: "orders",
  waiting: 419_066,
  waiting_is_exact: false,
  ...more,
});

export const progress = (more: Partial<Schemas["GroupProgress"]> = {}): Schemas["GroupProgress"] => ({
  filter: null,
  group: "ship",
  read_to: null,
  tags: "*",
  topic: "orders",
  ...more,
});

export const groups = (some: Schemas["GroupNumbers"][]): Schemas["Groups"] => ({
  groups: some,
  groups_to: null,
  next: null,
  now_at: NOW,
  progress: [],
});

export const letter = (number: number, more: Partial<Schemas["ListedDeadLetter"]> = {}) => ({
  attempt: 1,
  born_at: at(-600),
  dead_at: at(number - 100),
  kept_until: at(number + 1440),
  key: `r-${number}`,
  message_id: id(number),
  reason: "HTTP 503",
  redriven_at: null,
  tag: null,
  topic: "orders",
  ...more,
});

export const letters = (some: Schemas["ListedDeadLetter"][], next: string | null = null) => ({
  dead_letters: some,
  next,
  now_at: NOW,
});

export const reason = (
  words: string | null,
  number: number,
  complete = true,
): Schemas["DeadLetterReasons"] => ({
  complete,
  now_at: NOW,
  reasons: [{ first_dead_at: at(-90), last_dead_at: at(-80), messages: number, reason: words }],
});

export const entry = (
  state: string,
  of: string | null = null,
  more: Partial<Schemas["HistoryEntry"]> = {},
): Schemas["HistoryEntry"] => ({
  at: at(-30),
  attempt: of === null ? null : 1,
  consumer: null,
  consumer_group: of,
  known_as: id(1),
  reason: null,
  state,
  until_at: null,
  ...more,
});

export const one = (more: Partial<Schemas["OneMessage"]> = {}): Schemas["OneMessage"] => ({
  asked_at: null,
  awaits_answer: false,
  body: { kind: "json", shown_bytes: 20, size_bytes: 20, text: '{\n  "amount": 19.90\n}' },
  born_at: at(-60),
  deliver_at: at(5),
  edited_to: {},
  history: [entry("Initialized", null, { at: at(-60) }), entry("Timing", null, { until_at: at(5) })],
  key: "order-1",
  message_group: null,
  message_id: id(1),
  moved_from: null,
  now_at: NOW,
  properties: {},
  recalled: false,
  released: false,
  replaced_by: null,
  sent_by_task: null,
  tag: null,
  topic: "orders",
  ...more,
});

export const lease = (more: Partial<Schemas["RunningLease"]> = {}): Schemas["RunningLease"] => ({
  answered: 1,
  consumer: "worker-1",
  expires_at: at(30),
  group: "ship",
  is_retry: false,
  lease_id: "1.1.0.7.1",
  leased_at: at(-30),
  messages: 3,
  queue: 4,
  topic: "orders",
  ...more,
});

export const retry = (number: number, more: Partial<Schemas["WaitingRetry"]> = {}) => ({
  attempt: 2,
  deliver_at: at(number),
  group: "bill",
  key: `order-${number}`,
  message_id: id(number),
  reason: "HTTP 429",
  tag: null,
  topic: "orders",
  ...more,
});

/** An hour on each side of now. */
export const axis = (due: Schemas["DueStep"][]): Schemas["Axis"] => ({
  complete: true,
  counted_topics: [...new Set(due.map((one) => one.topic))].filter((topic) =>
    due.every((one) => one.topic !== topic || one.exact),
  ).length,
  due,
  from_at: at(-60),
  past_messages: 0,
  past_messages_is_exact: true,
  past_steps: 60,
  step_seconds: 60,
  steps: 120,
  topics: new Set(due.map((one) => one.topic)).size,
});

export const step = (topic: string, number: number, sum: number, exact = true) => ({
  exact,
  messages: sum,
  step: number,
  topic,
});

export const wheel = (name: string, active_at: string | null): Schemas["TurningWheel"] => ({
  active_at,
  client_address: null,
  connections: 2,
  login: "wheel",
  name,
  started_at: at(-61),
});

const late = (topic: string, p99_seconds: number): Schemas["TopicLateness"] => ({
  by_wheel: true,
  newest_at: at(-1),
  p50_seconds: 0.012,
  p99_seconds,
  ticks: 3,
  topic,
});

export const overview = (more: Partial<Schemas["Overview"]> = {}): Schemas["Overview"] => ({
  axis: axis([
    step("orders", 58, 5),
    step("orders", 65, 3),
    step("vouchers", 65, 1),
    step("vouchers", 90, 1),
  ]),
  flow: [{ acked: 3, failed: 1, received: 4, step: 58 }],
  age_seconds: 0,
  held_up_by: [],
  lateness: [late("orders", 0.5)],
  missing: [],
  next_in_seconds: 2,
  now_at: NOW,
  shared_seconds: 2,
  ...more,
});

export const pulse = (more: Partial<Schemas["Pulse"]> = {}): Schemas["Pulse"] => ({
  age_seconds: 0,
  dead: 0,
  faults: [],
  groups_at: NOW,
  groups_to: null,
  lag: null,
  late: null,
  late_has_all: true,
  next_in_seconds: 2,
  now_at: NOW,
  overdue: [],
  overdue_has_more: false,
  overdue_messages: [],
  shared_seconds: 2,
  waiting: 5,
  waiting_is_exact: true,
  wheels: [wheel("turning:1", NOW)],
  ...more,
});

const day = Array.from({ length: 24 }, (_, hour) => (hour === 20 ? 1 : hour === 21 ? 46_800 : null));

export const SHOP: Reads = {
  "dead-letter-reasons": reason("HTTP 503", 2),
  "dead-letters": letters([letter(1), letter(2)]),
  "dead-letters/count": { exact: true, messages: 2, now_at: NOW },
  "groups/rewind/count": { exact: true, messages: 7 },
  groups: groups([
    group({ dead: 2, inflight: 3, ready: 1_999, waiting_retry: 4, oldest_deliver_at: at(-180) }),
  ]),
  lateness: {
    age_seconds: 0,
    from_at: at(-60 * 23),
    hours: 24,
    looked_at_hours: 24,
    next_in_seconds: 2,
    shared_seconds: 60,
    topics: [{ p99_seconds: day, topic: "orders" }],
  },
  leases: { leases: [lease()], more: false, now_at: NOW },
  messages: messages([message(1, { tag: "unpaid" }), message(2)]),
  "messages/count": { exact: true, messages: 2 },
  "messages/{message_id}": one(),
  "messages/{message_id}/actions": { actions: [], may_read: true },
  names: { age_seconds: 0, groups: ["ship"], next_in_seconds: 2, shared_seconds: 2, topics: ["orders"] },
  overview: overview(),
  pulse: pulse(),
  "recent-actions": { actions: [] },
  retries: { retries: [retry(1), retry(2)] },
  schedules: {
    now_at: NOW,
    schedules: [
      {
        cron: "0 5 * * *",
        every_seconds: null,
        last_at: null,
        misfire: "once",
        name: "clean-up",
        next_at: at(60),
        paused_at: null,
        timezone: "Europe/Berlin",
        topic: "orders",
      },
    ],
  },
  "task-messages": { messages: [], now_at: NOW },
  "early-answers": {
    answers: [{ answer: { approved: true }, key: "order-7", topic: "approvals", until_at: at(1440) }],
    may_read: true,
    more: false,
    now_at: NOW,
  },
  "waiting-runs": {
    more: false,
    now_at: NOW,
    runs: [
      {
        born_at: at(-10),
        deliver_at: at(110),
        key: "order-1",
        message_id: id(1),
        task: "airflow:approve/r/t/-1",
        topic: "approvals",
      },
    ],
  },
  "topics/one": {
    now_at: NOW,
    numbers: topic(),
    settings: {
      created_at: at(-1440),
      dead_letter_retention_seconds: 2_592_000,
      delay_levels_seconds: [1, 5],
      granularity_seconds: 0.015,
      max_delay_seconds: 86_400,
      out_of_range: "reject",
      queues: 4,
      retention_seconds: 259_200,
    },
  },
  topics: {
    next: null,
    now_at: NOW,
    topics: [topic()],
  },
  "waiting-consumers": {
    consumers: [
      {
        client_address: "10.0.0.7",
        consumer: "airflow:cancel/r/t/-1",
        group: "ship",
        login: "ann",
        started_at: at(-10),
        topic: "orders",
      },
    ],
    more: false,
    now_at: NOW,
  },
};

export const WATCHERS: Schemas["Watchers"] = {
  more: false,
  now_at: NOW,
  watchers: [
    {
      asset: "due_orders",
      connection_id: "shop",
      dags: ["cancel"],
      group: "canceller",
      name: "wheel",
      problem: "Group canceller is paused.",
      rang_at: at(-10),
      topic: "orders",
      triggerer: "machine-7",
    },
  ],
};
