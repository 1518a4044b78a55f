-- Schedules: messages that are sent again and again. What comes next waits as an ordinary message, sent a little ahead.
create table duewheel.schedule (
    schedule_id integer generated always as identity primary key,
    name text not null unique,
    topic_id integer not null references duewheel.topic,
    -- Either a cron expression on the wall clock of timezone, or an interval counted from anchor_at.
    cron text,
    every interval,
    timezone text not null,
    -- As it was given: no occurrence before it.
    start_at timestamptz,
    anchor_at timestamptz not null,
    -- Occurrences that were not sent in time: none of them, the last one, or all are sent late.
    misfire text not null check (misfire in ('skip', 'once', 'all')),
    body bytea not null,
    key text,
    tag text,
    properties jsonb,
    -- The next occurrence that has not been sent; null where there is none any more.
    next_at timestamptz,
    paused_at timestamptz,
    -- Counts the resumes: a step that was worked out before one is not taken.
    generation integer not null default 0,
    -- When its occurrences were last sent, or it was resumed; the schedule that has waited longest has its turn first.
    advanced_at timestamptz,
    created_at timestamptz not null,
    check ((cron is null) <> (every is null))
);
create index schedule_next on duewheel.schedule (next_at) where paused_at is null;
-- Finds the schedules that were sent while the clock was ahead.
create index schedule_advanced on duewheel.schedule (coalesce(advanced_at, created_at)) where paused_at is null;
create index schedule_topic on duewheel.schedule (topic_id);

-- The occurrences that were sent ahead, down to the newest that has come due: what a pause takes back.
create table duewheel.schedule_ahead (
    schedule_id integer not null references duewheel.schedule on delete cascade,
    occurs_at timestamptz not null,
    message_id text not null,
    primary key (schedule_id, occurs_at)
);
