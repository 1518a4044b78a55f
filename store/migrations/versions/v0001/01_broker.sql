-- The broker itself: one row that says which database cluster the logs belong to.
create table duewheel.broker (
    only_row boolean primary key default true check (only_row),
    -- pg_control_system().system_identifier: transaction ids and snapshots mean something only inside this cluster.
    system_identifier bigint not null,
    installed_at timestamptz not null default clock_timestamp(),
    -- When the logs were last stamped anew for another cluster.
    rebased_at timestamptz,
    -- Checksum of the function files that were applied last; `duewheel db check` compares it with the package's.
    functions_checksum text not null default '',
    -- When upkeep was last done as a whole; at first, when the broker was made.
    maintained_at timestamptz not null default clock_timestamp(),
    -- When it last came back after a rest, so that groups that are away have a while to come back, too.
    came_back_at timestamptz,
    -- The instant by which upkeep decides what to forget, and the clock as upkeep last noted it.
    believed_at timestamptz not null default clock_timestamp(),
    noted_at timestamptz not null default clock_timestamp(),
    -- Above this many bytes in the slots whose time has begun, the oldest go before their retention ends; null for no
    -- limit.
    retention_bytes bigint check (retention_bytes > 0),
    -- What then happens to messages that a group has not read: they are kept, with a warning, or they go, with one.
    when_full text not null default 'keep_unread' check (when_full in ('drop_unread', 'keep_unread')),
    -- A group that takes nothing for so long loses what is past retention; null for never.
    abandoned_after interval check (abandoned_after > interval '0')
);

insert into duewheel.broker (system_identifier)
select system_identifier from pg_control_system();
