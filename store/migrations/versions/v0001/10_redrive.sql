-- Redriven dead letters: each is sent again once, however many try. Discarded ones are never sent again.
create table duewheel.redrive (
    -- The dead letter; its queue is 0.
    topic_id integer not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    -- The message it was sent again as, on the group's retry topic. Of one that was discarded instead the instant of
    -- that, and null.
    retry_deliver_at timestamptz not null,
    retry_seq bigint unique,
    redriven_at timestamptz not null,
    primary key (topic_id, deliver_at, seq)
);
