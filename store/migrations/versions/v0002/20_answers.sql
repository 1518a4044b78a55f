-- The transaction that wrote an event: a repeated ack is harmless in the transaction that made the first one.
alter table duewheel.lease_event add column xid xid8;
alter table duewheel.lease_event alter column xid set default pg_current_xact_id();

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
    kind text not null check (kind in ('acked', 'failed', 'returned')),
    reason text,
    primary key (topic_id, group_id, queue, n, seq)
);
create unique index lease_answer_count on duewheel.lease_answer (topic_id, group_id, queue, n, answered_count);

-- It gets one more parameter. Beside the new one a call without it would fit both.
drop function if exists duewheel.ack(text[], timestamptz);
