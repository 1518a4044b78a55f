-- Checks of what callers give: numbers and instants.

create or replace function duewheel.check_limit(p_name text, p_value bigint, p_least bigint, p_most bigint)
returns void
language plpgsql immutable as $$
begin
    if (p_value between p_least and p_most) is not true then
        raise exception using
            errcode = 'DW010',
            message = format('%s is %s; the limit is %s to %s', p_name, coalesce(p_value::text, 'null'), p_least,
                             p_most),
            hint = 'Give a number within the limit.';
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

-- How many waiting messages one transaction passes or takes back, beside those it returns; and one lease covers.
-- role: consumer
create or replace function duewheel.portion() returns integer
language sql immutable parallel safe
return 10000;
