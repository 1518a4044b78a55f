-- The wheel asks which leases end soon, of all topics and groups at once.
create index lease_end on duewheel.lease (expires_at) where message_count > 0;
create index lease_event_end on duewheel.lease_event (expires_at) where expires_at is not null;
