-- FIFO topics: a group reads the messages of one message group one lease at a time, in order.

-- The messages of a lease of a FIFO topic; their order is that of the key.
create table duewheel.lease_message (
    n bigint not null,
    -- The order in which the group has seen the messages of the queue; a retry keeps its place.
    place bigint not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    topic_id integer not null,
    group_id integer not null,
    -- Where the message itself stands: in the topic, or, sent on again, in the group's retries.
    source_topic_id integer not null,
    attempt integer not null,
    queue smallint not null,
    source_queue smallint not null,
    message_group text not null,
    primary key (topic_id, group_id, queue, n, place)
);
create index lease_message_group on duewheel.lease_message (topic_id, group_id, queue, message_group, n);

-- Messages behind a group's position that nobody has: their message group was in somebody's hands when they were seen, or
-- they wait for a retry. A row goes when its message is leased.
create table duewheel.fifo_backlog (
    place bigint not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    -- Of a message that failed: not before this instant, and nothing behind it either.
    due_at timestamptz,
    -- Looked at when this lease has no unanswered message of the message group any more. The first row of a message group
    -- has this or due_at, or it would not be found.
    blocked_n bigint,
    topic_id integer not null,
    group_id integer not null,
    source_topic_id integer not null,
    attempt integer not null,
    queue smallint not null,
    source_queue smallint not null,
    message_group text not null,
    -- Why the last attempt failed.
    reason text,
    primary key (topic_id, group_id, queue, message_group, place)
);
create index fifo_backlog_due on duewheel.fifo_backlog (topic_id, group_id, queue, due_at) where due_at is not null;
create index fifo_backlog_blocked on duewheel.fifo_backlog (topic_id, group_id, queue, blocked_n, message_group)
where blocked_n is not null;
-- Retention asks for a group's messages of a time. Expressions, so that no plan of an empty table takes it for the
-- primary key.
create index fifo_backlog_age on duewheel.fifo_backlog
((topic_id::bigint << 32 | group_id), timezone('UTC', deliver_at));
-- A slot that is dropped while the topic's messages outlive it asks for the redriven ones alone.
create index fifo_backlog_redriven on duewheel.fifo_backlog (source_topic_id, timezone('UTC', deliver_at))
where source_topic_id <> topic_id;
