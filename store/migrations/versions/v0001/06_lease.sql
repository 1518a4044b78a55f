-- Leases: a group reads on from where its newest lease of a queue ended. A lease covers a range of one slot, or a range
-- of stragglers; a lease of no messages only moves the position.
create table duewheel.lease (
    from_at timestamptz not null,       -- exclusive, with from_seq
    from_seq bigint not null,
    to_at timestamptz not null,         -- inclusive, with to_seq
    to_seq bigint not null,
    straggler_from bigint not null,     -- exclusive
    straggler_to bigint not null,       -- inclusive
    n bigint not null,
    -- Drawn anew for every lease: a handle from before a crash cannot answer a later lease of the same number. 0 where
    -- only the position moved, -1 where a rewind or the start of a stream set it back.
    token bigint not null,
    leased_at timestamptz not null,
    expires_at timestamptz not null,
    -- Every lease of this queue that ended up to here has been looked at: answered, or its messages revived.
    revived_to timestamptz not null,
    topic_id integer not null,
    group_id integer not null,
    message_count integer not null,
    queue smallint not null,
    -- The tags the messages were chosen by; null for all.
    tags text[],
    consumer text,
    -- The property filter the messages were chosen by; null for all. Retries are not filtered again.
    filter jsonpath,
    -- FIFO: its messages stand in lease_message; the range only moves the position.
    listed boolean not null default false,
    -- Leases come in the order of the indexes: pages stay as they were filled.
    primary key (topic_id, group_id, queue, n) with (fillfactor = 100)
);
create index lease_expiry on duewheel.lease (topic_id, group_id, queue, expires_at, n) with (fillfactor = 100)
where message_count > 0;
-- The wheel polls for leases that end soon, of all topics and groups together. Leases that end in the same tenth of a
-- second share an entry, which takes 9 bytes of each instead of 24. On this expression a statement about one queue has
-- no use for the index: it uses lease_expiry, and does not read the leases of all other queues.
create index lease_end on duewheel.lease (date_bin('100 ms', timezone('UTC', expires_at), '2000-01-01'))
with (fillfactor = 100) where message_count > 0;
-- Between two rewinds the ranges follow each other.
create index lease_rewound on duewheel.lease (topic_id, group_id, queue, n) where token = -1;

-- What ended a lease: acked, failed, returned, expired, rewound.
-- Returned: the messages wait again at once, without a retry. Rewound: the group was set back to an earlier instant.
-- No CHECK lists the kinds: each ack would read it again from the catalog, which costs a tenth of the ack. Only the
-- functions of duewheel write them: duewheel.check_answer has the kinds of answers.
create table duewheel.lease_event (
    n bigint not null,
    at timestamptz not null,
    -- The transaction that wrote it: a repeated ack is harmless in the transaction that made the first one. Null after a
    -- rebase.
    xid xid8 default pg_current_xact_id(),
    topic_id integer not null,
    group_id integer not null,
    queue smallint not null,
    kind text not null,
    -- With more than eight columns each row without a reason would be eight bytes longer.
    reason text,
    primary key (topic_id, group_id, queue, n) with (fillfactor = 100)
);
-- What ended without an answer since an instant, for counters: few of all the events.
create index lease_event_expired on duewheel.lease_event (at) where kind = 'expired';

-- Extensions and deferrals of a lease: it ends at its newest extension, but not before its newest deferral.
create sequence duewheel.lease_extension_number;
create table duewheel.lease_extension (
    n bigint not null,
    -- Above 0: extensions, below: deferrals; of both, the newest is the farthest from 0. So each of the two is found by
    -- a lookup, however many of the other there are.
    extension_id bigint not null,
    at timestamptz not null,
    -- The new end of the lease.
    expires_at timestamptz not null,
    -- The transaction that wrote it. Null after a rebase.
    xid xid8 default pg_current_xact_id(),
    topic_id integer not null,
    group_id integer not null,
    queue smallint not null,
    primary key (topic_id, group_id, queue, n, extension_id)
);
-- Only statements about ends name its condition. A lookup of one lease has no use for the index, through which it would
-- read all extensions of a queue.
create index lease_extension_expiry on duewheel.lease_extension (topic_id, group_id, queue, expires_at, n)
where expires_at > '-infinity';
create index lease_extension_end on duewheel.lease_extension (timezone('UTC', expires_at));

-- Answers to single messages of a lease, found by the message. An answer to all of a lease is one row of lease_event.
create table duewheel.lease_answer (
    n bigint not null,
    seq bigint not null,
    at timestamptz not null,
    xid xid8 not null default pg_current_xact_id(),
    topic_id integer not null,
    group_id integer not null,
    -- How many rows of the lease there are up to this one.
    answered_count integer not null,
    queue smallint not null,
    kind text not null,
    reason text,
    primary key (topic_id, group_id, queue, n, seq)
);
create unique index lease_answer_count on duewheel.lease_answer (topic_id, group_id, queue, n, answered_count);
