-- Messages that were sent behind their topic's newest tick, as the clock was ahead when that was made: a tick delivers
-- each as a straggler when its instant has come, and the row goes.
create table duewheel.held_back (
    topic_id integer not null,
    queue smallint not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    primary key (topic_id, deliver_at, queue, seq)
);

-- The tick that this one went by, null for the first of a topic. At COMMIT the two must be neighbours.
alter table duewheel.tick add column after_tick_id bigint;

-- Somebody passed a topic's tick lock, which an open transaction had held for longer than a second. What that
-- transaction ticked or recalled cannot be committed any more.
create table duewheel.overtaken (
    topic_id integer not null,
    -- The transaction that passed.
    xid xid8 not null default pg_current_xact_id(),
    at timestamptz not null default clock_timestamp()
);
create index overtaken_topic on duewheel.overtaken (topic_id, xid);
