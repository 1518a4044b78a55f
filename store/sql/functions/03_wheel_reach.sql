-- How far ahead senders leave it to the wheel to look: it asks twice a second by itself what is due, so a message that
-- is due later than this needs no notification.
create or replace function duewheel.wheel_reach() returns interval
language sql immutable parallel safe
return interval '600 milliseconds';
