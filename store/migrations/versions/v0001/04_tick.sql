-- Ticks: one row releases everything due in (lo, hi] that its snapshot sees, however many messages that is.
create table duewheel.tick (
    -- In the order of their widths: a row has no padding.
    tick_id bigint generated always as identity,
    lo timestamptz not null,
    -- Never falls from one tick of a topic to the next.
    hi timestamptz not null,
    -- Every transaction that sent something due at or before hi has an id below this one.
    tick_xid xid8 not null,
    ticked_at timestamptz not null,
    topic_id integer not null,
    -- How many other transaction ids were open. Above 0, stragglers of this tick may still follow.
    open_count integer not null,
    stragglers integer not null,
    -- A wheel ticked: it comes again at hi + granularity.
    by_wheel boolean not null,
    -- Taken after hi was read and after tick_xid was taken.
    snapshot pg_snapshot not null,
    -- queue_hi[q + 1]: hi of the newest tick that found something due in queue q; carried from tick to tick.
    queue_hi timestamptz[] not null,
    -- Ended transactions that left more late messages than one tick releases. The snapshot lists them as open, and the
    -- next tick continues after this message. Null if there are no such transactions.
    late_xids xid8[],
    late_at timestamptz,
    late_queue smallint,
    late_seq bigint,
    -- Ticks come in the order of the indexes: pages stay as they were filled.
    primary key (topic_id, hi, tick_id) with (fillfactor = 100)
);
create index tick_xid on duewheel.tick (topic_id, tick_xid) with (fillfactor = 100);

-- Stragglers: messages whose transaction committed after their instant had been released. They are delivered by the
-- tick that first sees them, in a stream of their own beside the interval.
create table duewheel.straggler (
    topic_id integer not null,
    queue smallint not null,
    -- Handed out under the topic's tick lock, so its order is the order of commits.
    straggler_id bigint generated always as identity,
    tick_id bigint not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    -- Up to where earlier ticks had released the topic. On a FIFO topic their messages are delivered first.
    behind_at timestamptz not null,
    primary key (topic_id, queue, straggler_id)
);
create index straggler_message on duewheel.straggler (topic_id, queue, deliver_at, seq);

-- Messages that were sent behind their topic's newest tick, as the clock was ahead when that was made: a tick delivers
-- each as a straggler when its instant has come, and the row goes.
create table duewheel.held_back (
    topic_id integer not null,
    queue smallint not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    primary key (topic_id, deliver_at, queue, seq)
);
