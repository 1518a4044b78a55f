-- Which messages a stream has rejected, so that a micro-batch that runs again sends no second retry of them.
create table duewheel.stream_reject (
    -- The stream's own name, drawn when it began.
    stream text not null,
    -- No two messages have the same.
    seq bigint not null,
    rejected_at timestamptz not null default clock_timestamp(),
    primary key (stream, seq)
);
create index stream_reject_rejected_at on duewheel.stream_reject (rejected_at);
