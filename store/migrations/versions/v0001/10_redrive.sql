-- Redriven dead letters: each is sent again once, however many try.
create table duewheel.redrive (
    -- The dead letter; its queue is 0.
    topic_id integer not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    -- The message it was sent again as, on the group's retry topic.
    retry_deliver_at timestamptz not null,
    retry_seq bigint not null unique,
    redriven_at timestamptz not null,
    primary key (topic_id, deliver_at, seq)
);
