-- Consumer groups and what they subscribe to.
create table duewheel.consumer_group (
    name text not null primary key,
    -- After this many retries a failed message is a dead letter.
    max_retries integer not null default 16 check (max_retries >= 0),
    -- retry_intervals[n] is the wait before retry n; the last one serves for all further retries.
    retry_intervals interval[] not null default array[
        '10 s', '30 s', '1 min', '2 min', '3 min', '4 min', '5 min', '6 min', '7 min', '8 min', '9 min', '10 min',
        '20 min', '30 min', '1 hour', '2 hours']::interval[],
    -- Each wait is drawn evenly from its interval times 1 - retry_jitter to 1 + retry_jitter.
    retry_jitter real not null default 0 check (retry_jitter between 0 and 1),
    -- FIFO topics: the wait before every retry, and how many there are; 2147483647 for no limit.
    ordered_interval interval not null default '1 second' check (ordered_interval > interval '0'),
    ordered_max_retries integer not null default 2147483647 check (ordered_max_retries >= 0),
    -- The consumer that set the retry settings, and when; null while they are the defaults.
    settings_by text,
    settings_at timestamptz,
    -- Clustering: the consumers share the messages. Broadcasting: this row is one instance, which reads every message by
    -- itself and never retries; its name is broadcast_group/instance.
    mode text not null default 'clustering' check (mode in ('clustering', 'broadcasting')),
    broadcast_group text,
    instance text,
    -- A program that still has one of these would receive all kept messages again, so no new group gets them.
    old_names text[] not null default '{}',
    created_at timestamptz not null default clock_timestamp(),
    check ((mode = 'broadcasting') = (broadcast_group is not null and instance is not null))
);
create index consumer_group_broadcast on duewheel.consumer_group (broadcast_group) where broadcast_group is not null;
create index consumer_group_old_names on duewheel.consumer_group using gin (old_names) where old_names <> '{}';

create table duewheel.subscription (
    -- The number of the group on this topic, under which its leases are stored. One that subscribes again has another
    -- number, and nothing of the leases before, which upkeep forgets. Ids come round again, as those of topics do.
    group_id integer generated always as identity (maxvalue 1048575 cycle) primary key check (group_id < 1048576),
    group_name text not null references duewheel.consumer_group on update cascade,
    topic_id integer not null references duewheel.topic,
    -- Null for a broadcasting instance: its messages are not retried.
    retry_topic_id integer unique references duewheel.topic,
    dead_letter_topic_id integer unique references duewheel.topic,
    created_at timestamptz not null default clock_timestamp(),
    -- Since then the group gets nothing, until it is resumed; null where it is not paused.
    paused_at timestamptz,
    -- When its newest pause ended.
    resumed_at timestamptz,
    -- A broadcasting instance: when it last asked for messages, to the hour.
    seen_at timestamptz,
    -- What all consumers of the group receive: messages with one of the tags, in alphabetical order, and for which the
    -- predicate over the properties is true. Null chooses all.
    tags text[],
    filter jsonpath,
    -- Once it has taken nothing for so long of what is kept for it, it goes; null: it stays.
    removed_after interval,
    unique (group_name, topic_id)
);
create index subscription_topic on duewheel.subscription (topic_id);
