-- Messages that are staged, to be published by one call of duewheel.publish_batch. Unlogged: what a crash of the server
-- takes is missed by that call, which then sends nothing.
create unlogged table duewheel.staged_part (
    part_id bigint primary key,
    -- Whose parts are published, or discarded, together.
    staging text not null,
    began_at timestamptz not null default clock_timestamp()
);
create index staged_part_staging on duewheel.staged_part (staging);

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

-- What was published, so that the same again sends nothing: of each writer, the newest of its numbered batches.
create table duewheel.published_batch (
    topic_id integer not null,
    writer text not null,
    batch bigint not null,
    published_at timestamptz not null,
    -- Upkeep forgets it then.
    until_at timestamptz not null,
    primary key (topic_id, writer)
);
create index published_batch_until on duewheel.published_batch (until_at);
