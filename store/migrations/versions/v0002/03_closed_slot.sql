-- Slots that no message may stand in yet: a transaction that looked at duewheel.message before the slot was there goes
-- on without it, and would pass over what stands in it. Those transactions are in awaited; null until somebody has
-- looked for them. told: when they had ended, all sessions were told of the slot once more.
create table duewheel.closed_slot (
    starts_at timestamptz primary key,
    awaited text[],
    told boolean not null default false
);
