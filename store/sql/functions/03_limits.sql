-- Limits of numbers that callers give.

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
