-- Messages that are staged, to be published by one call of duewheel.publish_batch. Unlogged: what a crash of the server
-- takes is missed by that call, which then sends nothing.
create unlogged table duewheel.staged_part (
    part_id bigint primary key,
    -- Whose parts are published, or discarded, together.
    staging text not null,
    began_at timestamptz not null default clock_timestamp()
);
create index staged_part_staging on duewheel.staged_part (staging);

-- What was published, so that the same again sends nothing: of each writer, the newest of its numbered batches.
create table duewheel.published_batch (
    topic_id integer not null,
    writer text not null,
    batch bigint not null,
    messages bigint not null,
    published_at timestamptz not null,
    -- Upkeep forgets it then.
    until_at timestamptz not null,
    primary key (topic_id, writer)
);
create index published_batch_until on duewheel.published_batch (until_at);
