-- Topics: what can be sent to, with the limits a sender and the wheel go by.
create table duewheel.topic (
    -- Part of every message id and of advisory lock keys, hence the upper bound. Ids come round again, so that topics
    -- that are made and removed for ever never use them up.
    topic_id integer generated always as identity (maxvalue 1048575 cycle) primary key check (topic_id < 1048576),
    name text not null unique,
    -- NORMAL, DELAY and FIFO are the user's; RETRY and DEAD_LETTER belong to one subscription.
    message_type text not null check (message_type in ('NORMAL', 'DELAY', 'FIFO', 'RETRY', 'DEAD_LETTER')),
    -- Consumers of one group take different queues in parallel.
    queues smallint not null check (queues between 1 and 64),
    max_delay interval not null check (max_delay > interval '0'),
    -- What happens to a delay past max_delay: an error, or delivery at once.
    out_of_range text not null check (out_of_range in ('reject', 'deliver')),
    -- A busy topic is ticked at most once per granularity.
    granularity interval not null check (granularity >= interval '1 millisecond'),
    -- Counted from the delivery instant.
    retention interval not null check (retention > interval '0'),
    -- The retention of the groups' dead letters of this topic.
    dead_letter_retention interval not null default '30 days' check (dead_letter_retention > interval '0'),
    -- delay_levels[n] is the delay of level n.
    delay_levels interval[] not null,
    -- RETRY and DEAD_LETTER: the topic whose consumers the messages come from.
    parent_topic_id integer references duewheel.topic,
    created_at timestamptz not null default clock_timestamp(),
    -- A deleted topic keeps its row under another name until its slots are dropped.
    deleted_at timestamptz,
    -- Everything of the topic that was due before is past retention and was finished by every group, though a slot of it
    -- may be kept for other topics. Its logs are gone, and nobody can go back to it. Null: everything is kept.
    kept_from timestamptz,
    -- The same instant as upkeep last found it. Unlike kept_from it falls when a clock that was ahead is put right.
    -- Messages sent before kept_from are then released late.
    floor_at timestamptz,
    -- DEAD_LETTER: all dead letters due before were sent again or discarded, and no later one is due before.
    redrive_from timestamptz
);
-- The topics of a subscription.
create index topic_parent on duewheel.topic (parent_topic_id) where parent_topic_id is not null;
create index topic_deleted on duewheel.topic (deleted_at) where deleted_at is not null;
