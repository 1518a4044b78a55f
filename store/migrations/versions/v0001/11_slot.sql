-- The slots that exist, so that a statement can name exactly the partitions it needs.
create table duewheel.slot (
    starts_at timestamptz primary key,
    ends_at timestamptz not null unique,
    table_name text not null unique,
    -- When the sweep for rows that no tick covers has passed over it.
    sealed_at timestamptz,
    -- Noted once it is over: only transactions with lower ids can still send into it.
    open_below xid8
);

-- The topics whose rows in a slot that is over the sweep has looked through, until the slot is sealed.
create table duewheel.swept_topic (
    starts_at timestamptz,
    topic_id integer,
    -- The last row that it has looked at; null where it is done.
    queue smallint,
    deliver_at timestamptz,
    seq bigint,
    primary key (starts_at, topic_id)
);

-- Slots that no message may stand in yet: a transaction that looked at duewheel.message before the slot was there goes
-- on without it, and would pass over what stands in it.
create table duewheel.closed_slot (
    starts_at timestamptz primary key,
    -- Those transactions; null until somebody has looked for them.
    awaited text[],
    -- When they had ended, all sessions were told of the slot once more.
    told boolean not null default false
);

-- The slots that were dropped, and why: what became of a message that is no longer there.
create table duewheel.dropped_slot (
    starts_at timestamptz not null,
    ends_at timestamptz not null,
    dropped_at timestamptz not null,
    reason text not null,
    -- How many messages each clustering group had still to read, where one had; at_least: not counted to the end.
    unread jsonb not null default '[]',
    primary key (starts_at, dropped_at)
);

-- The slots that messages have outlived: upkeep moved those of these topics, which are kept for longer than the others,
-- into duewheel.far_message, where they stay.
create table duewheel.outlived_slot (
    starts_at timestamptz primary key,
    ends_at timestamptz not null,
    table_name text not null,
    topic_ids integer[] not null,
    -- Of the messages that moved out, without indexes.
    bytes bigint not null default 0,
    -- They are to go though they are kept, as there is no room for them.
    is_dropped boolean not null default false
);
