-- Recalls: the messages that are never delivered. The check that the message had not been released runs at commit.
create table duewheel.recall (
    topic_id integer not null,
    queue smallint not null,
    -- One of many: checked with its chunk, not by itself.
    bulk boolean not null default false,
    deliver_at timestamptz not null,
    seq bigint not null,
    recalled_at timestamptz not null,
    -- The id of the message that was sent in its stead.
    replaced_by text,
    -- The answer to a run that waits, an object with body and properties; null for a plain recall.
    answer jsonb,
    -- The transaction that answered.
    answer_xid xid8,
    primary key (topic_id, queue, deliver_at, seq)
);
-- Triggerers ask once a second for new answers.
create index recall_answer_xid on duewheel.recall (answer_xid) where answer_xid is not null;

-- Answers that came before a run waits under their key: the next wait under the key takes its row.
create table duewheel.early_answer (
    topic_id integer not null,
    key text collate "C" not null,
    -- As in duewheel.recall.
    answer jsonb not null,
    -- From then on it may be forgotten.
    until_at timestamptz not null,
    primary key (topic_id, key)
);
create index early_answer_until on duewheel.early_answer (until_at);

-- The ids of messages that were moved to another instant, all that each has had: any of them leads to the present one,
-- which has the highest seq. A move adds a row and changes none. Messages that stay where they were sent have no row.
create table duewheel.moved_id (
    topic_id integer not null,
    queue smallint not null,
    deliver_at timestamptz not null,
    seq bigint not null,
    -- Of the id that the sender got: the same in all rows of a message.
    first_seq bigint not null,
    -- Since when the message has had this id.
    since_at timestamptz not null,
    -- In the row of the first id: upkeep found one of the others kept, and asks again after this instant.
    put_off_to timestamptz,
    primary key (topic_id, first_seq, seq)
);
create unique index moved_id_seq_key on duewheel.moved_id (topic_id, seq);
-- Upkeep forgets the ids of messages that are gone.
create index moved_id_put_off_to on duewheel.moved_id (topic_id, coalesce(put_off_to, deliver_at))
where seq = first_seq;

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
create index bulk_recall_topic on duewheel.bulk_recall (topic_id, first_deliver_at);

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
