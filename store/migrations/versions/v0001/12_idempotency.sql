-- A key given by the sender for which the same message is never sent twice.
create table duewheel.idempotency (
    topic_id integer not null,
    idempotency_key text not null,
    queue smallint not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    -- From then on the key may be forgotten.
    until_at timestamptz not null,
    -- Of one move by key: the messages it moved besides this one. It is answered again with all of them.
    also_moved text[],
    primary key (topic_id, idempotency_key)
);
create index idempotency_until on duewheel.idempotency (until_at);
