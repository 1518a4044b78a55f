-- Dead letters that were redriven, each once however many try, or discarded; and retries that were made due at once.
create table duewheel.redrive (
    -- The message that was sent again; its queue is 0.
    topic_id integer not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    redriven_at timestamptz not null,
    -- A dead letter that is never sent again.
    is_discarded boolean not null,
    primary key (topic_id, deliver_at, seq)
);
