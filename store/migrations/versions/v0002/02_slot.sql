-- A slot is as wide as its row says; those that were dropped before were an hour.
alter table duewheel.dropped_slot add column ends_at timestamptz;
update duewheel.dropped_slot set ends_at = starts_at + interval '1 hour';
