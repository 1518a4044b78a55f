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

-- Where a look at a key's messages may begin, as it need not pass over again what was over by then: recalled or
-- released. Which row is taken changes the cost of a look and never its answer.
create table duewheel.key_mark (
    mark_id bigint generated always as identity primary key,
    topic_id integer not null,
    key text collate "C" not null,
    -- Messages that it sees were over, but for those of some transactions: the one that wrote this, whose messages came
    -- later, and those whose messages waited.
    snapshot pg_snapshot not null,
    but_xids xid8[] not null,
    -- The newest message that had been released, and the newest that had been recalled: what there is to answer where
    -- nothing waits.
    released_id text,
    recalled_id text,
    marked_at timestamptz not null default clock_timestamp()
);
create index key_mark_key on duewheel.key_mark (topic_id, key, mark_id);
create index key_mark_marked_at on duewheel.key_mark (marked_at);
