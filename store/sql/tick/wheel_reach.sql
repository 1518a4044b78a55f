-- How far ahead senders rely on the wheel's polls: it polls twice a second, so a message that is due later than this
-- needs no notification.
create or replace function duewheel.wheel_reach() returns interval
language sql immutable parallel safe
return interval '600 milliseconds';

-- Whether a topic whose newest tick, a wheel's, released (p_lo, p_hi] is busy: little time has passed since the
-- previous tick. The wheel then ticks it for another 0.3 s, and senders need not notify it. A topic with a message now
-- and then is not busy: each message would cost the wheel a dozen ticks in vain. STABLE like duewheel.quiet_until.
create or replace function duewheel.is_busy(p_lo timestamptz, p_hi timestamptz, p_granularity interval) returns boolean
language sql stable parallel safe
return p_lo < p_hi and p_lo >= p_hi - greatest(2 * p_granularity, interval '50 milliseconds');
