-- Messages: rows that are never updated. Partitioned by the delivery instant into slots, which are created ahead and
-- dropped whole. A message moves to another table only if its slot opens later, or is dropped earlier, than it needs.
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
    -- The message of the chain that was sent again as this one, and the lease that held it, or the stream that read it.
    previous_seq bigint,
    lease_n bigint,
    topic_id integer not null,
    -- 1 for a message that is delivered the first time. Before the shorter columns, so that alignment wastes no byte.
    attempt integer not null default 1,
    queue smallint not null,
    -- The usual content types in a byte: see duewheel.content_type_mark. Null: the properties name the type, or there
    -- is none.
    content_type "char",
    origin_queue smallint,
    tag text,
    -- Ordered by its bytes, whatever the database's locale: a prefix is then a range of the index.
    key text collate "C",
    message_group text,
    properties jsonb,
    -- Retries and dead letters: why the last attempt ended, and the error's text.
    reason text,
    body bytea not null,
    primary key (topic_id, queue, deliver_at, seq),
    -- A retry may be due before, if the clock was ahead when its message was sent.
    constraint deliver_not_before_born check (deliver_at >= born_at or origin_seq is not null)
) partition by range (deliver_at);

-- Stragglers are found by exact look-ups of the transactions that were open at a tick. Messages of a transaction that
-- are due in the same minute share an entry, which takes 9 bytes of each instead of 36.
create index message_xid
on duewheel.message (topic_id, xid, date_bin('1 minute', deliver_at, '2000-01-01 00:00:00+00'));
-- The sender's own key; of each key, what a transaction sent.
create index message_key on duewheel.message (topic_id, key, xid) where key is not null;
-- The chain of retries and dead letters of one message.
create index message_origin on duewheel.message (origin_seq) where origin_seq is not null;

-- Messages whose slot is not made yet: those due in weeks or years. Upkeep moves each into its slot when that is made;
-- until then, and where no upkeep runs, statements find it here. The columns are those of duewheel.message, in the same
-- order.
create table duewheel.far_message (like duewheel.message including defaults including constraints including indexes);
-- Upkeep asks for what is due before the end of the last slot, of all topics. The index is on an expression, so that no
-- other statement has a use for it: in a plan that was made while the table was small it would do for the messages of one
-- queue as well as the primary key does, and read those of all others. Each portion begins at the entries that the
-- portions before it have moved: Postgres marks single entries of dead rows, so that they are read once, but fails to
-- mark some lists of entries with one key.
create index far_message_due on duewheel.far_message (timezone('UTC', deliver_at)) with (deduplicate_items = off);

-- The messages of both. A view that every send and receive uses can be changed only when no open transaction has sent or
-- received, so it is made here and not with the functions. A revision that changes the columns of duewheel.message drops
-- it and makes it again.
create view duewheel.any_message as
select * from duewheel.message
union all
select * from duewheel.far_message;

-- Messages of staged parts, which are not sent yet. A crash of the server takes them.
create unlogged table duewheel.staged_message (
    part_id bigint not null,
    -- 0 for the first message of its part, and so on without a gap.
    place integer not null,
    -- When it is to come: one of these in a topic of type DELAY, none in the others.
    deliver_at timestamptz,
    delay_microseconds bigint,
    delay_level integer,
    tag text,
    key text,
    properties jsonb,
    message_group text,
    body bytea
);
create index staged_message_part on duewheel.staged_message (part_id);

-- One draw reserves 16 blocks of 65536 message numbers: enough for the largest send_many.
create sequence duewheel.message_block increment by 16;
