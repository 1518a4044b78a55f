-- What one move by key moved besides the message of its row: it is answered again with all of them.
alter table duewheel.idempotency add column also_moved text[];
