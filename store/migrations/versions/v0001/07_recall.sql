-- Recalls: the messages that are never delivered. The check that the message had not been released runs at commit.
create table duewheel.recall (
    topic_id integer not null,
    queue smallint not null,
    -- One of many: checked with its chunk, not by itself.
    bulk boolean not null default false,
    deliver_at timestamptz not null,
    seq bigint not null,
    recalled_at timestamptz not null,
    primary key (topic_id, queue, deliver_at, seq)
);

-- One row for each chunk of recalls in a caller's transaction: what had to be waiting when that committed.
create table duewheel.bulk_recall (
    topic_id integer not null,
    -- The earliest instant among the chunk's messages.
    first_deliver_at timestamptz not null,
    -- How many they are.
    recalled bigint not null,
    recalled_at timestamptz not null,
    bulk_id bigint generated always as identity primary key
);
