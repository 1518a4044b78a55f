-- Checks of what callers give: numbers and instants.

create or replace function duewheel.check_limit(p_name text, p_value bigint, p_least bigint, p_most bigint)
returns void
language plpgsql immutable as $$
begin
    if (p_value between p_least and p_most) is not true then
        raise exception using
            errcode = 'DW010',
            message = format('%s must be %s to %s; got %s', p_name, p_least, p_most, coalesce(p_value::text, 'null')),
            hint = 'Give a number within these limits.';
    end if;
end
$$;

-- The instant that a caller gives, who has to have the right to it, or the clock's.
create or replace function duewheel.clock_at(p_now timestamptz) returns timestamptz
language plpgsql as $$
begin
    if p_now is not null then
        perform duewheel.require_clock_right(p_now);
    end if;
    return coalesce(p_now, clock_timestamp());
end
$$;

-- How many waiting messages one transaction skips or recalls, not counting those it returns, and how many messages one
-- lease covers.
-- role: consumer
create or replace function duewheel.portion() returns integer
language sql immutable parallel safe
return 10000;
