-- How many messages of the slot each clustering group had still to read when it was dropped, where somebody had.
alter table duewheel.dropped_slot add column unread jsonb not null default '[]';
