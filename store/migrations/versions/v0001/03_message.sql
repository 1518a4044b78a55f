-- Messages: written once and never touched again. Partitioned by the delivery instant into hourly slots: the slots of
-- the wheel on disk, made ahead and dropped whole.
create table duewheel.message (
    -- The instant from which the message is delivered: greatest(asked, the clock, just after the topic's last tick).
    deliver_at timestamptz not null,
    -- Unique in the whole broker: block * 65536 + index; orders messages of one instant.
    seq bigint not null,
    -- The sender's transaction: a tick releases what its snapshot sees of it.
    xid xid8 not null default pg_current_xact_id(),
    -- Read from the clock after the transaction id was taken.
    born_at timestamptz not null,
    -- The instant the sender asked for, where it differs from deliver_at.
    asked_at timestamptz,
    -- Retries and dead letters: the position of the first message of the chain.
    origin_deliver_at timestamptz,
    origin_seq bigint,
    origin_topic_id integer,
    topic_id integer not null,
    queue smallint not null,
    origin_queue smallint,
    -- 1 for a message that is delivered the first time.
    attempt integer not null default 1,
    tag text,
    -- Ordered by its bytes, whatever the database's locale: a prefix is then a range of the index.
    key text collate "C",
    message_group text,
    properties jsonb,
    -- Retries and dead letters: why the last attempt ended, and the error's text.
    reason text,
    body bytea not null,
    primary key (topic_id, queue, deliver_at, seq),
    constraint deliver_not_before_born check (deliver_at >= born_at)
) partition by range (deliver_at);

-- Stragglers are found by exact look-ups of the transactions that were open at a tick.
create index message_xid on duewheel.message (topic_id, xid, deliver_at);
-- The sender's own key.
create index message_key on duewheel.message (topic_id, key) where key is not null;
-- The chain of retries and dead letters of one message.
create index message_origin on duewheel.message (origin_seq) where origin_seq is not null;

-- One draw reserves 16 blocks of 65536 message numbers: enough for the largest send_many.
create sequence duewheel.message_block increment by 16;

-- The slots that exist, so that a statement can name exactly the partitions it needs.
create table duewheel.slot (
    starts_at timestamptz primary key,
    ends_at timestamptz not null unique,
    table_name text not null unique,
    -- When the sweep for rows that no tick covers has passed over it.
    sealed_at timestamptz,
    -- Until then: the topics whose rows it has looked through.
    swept_topic_ids integer[] not null default '{}'
);

-- The slots that were dropped, and why: what became of a message that is no longer there.
create table duewheel.dropped_slot (
    starts_at timestamptz not null,
    dropped_at timestamptz not null,
    reason text not null,
    primary key (starts_at, dropped_at)
);

-- A key given by the sender for which the same message is never sent twice.
create table duewheel.idempotency (
    topic_id integer not null,
    idempotency_key text not null,
    queue smallint not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    -- From then on the key may be forgotten.
    until_at timestamptz not null,
    primary key (topic_id, idempotency_key)
);
create index idempotency_until on duewheel.idempotency (until_at);
