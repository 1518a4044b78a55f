-- What ended without an answer since an instant, for counters: few of all the events.
create index lease_event_expired on duewheel.lease_event (at) where kind = 'expired';
