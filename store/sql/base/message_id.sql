-- The public message id: 22 bytes big endian in lower-case hex: topic_id (4), queue (2), microseconds of deliver_at
-- since the Unix epoch (8), seq (8). It is the primary key of its row and needs no separate index.
-- role: everyone
create or replace function duewheel.unix_micros(p_at timestamptz) returns bigint
language sql immutable strict parallel safe
-- extract() of a timestamptz is STABLE and would block inlining, so the argument is an interval.
return (extract(epoch from p_at - timestamptz '1970-01-01 00:00:00+00') * 1000000)::bigint;

-- STABLE like the addition of an interval to an instant, or calls would not be inlined.
-- role: everyone
create or replace function duewheel.from_unix_micros(p_micros bigint) returns timestamptz
language sql stable strict parallel safe
return timestamptz '1970-01-01 00:00:00+00' + p_micros * interval '1 microsecond';

-- The end of an instant: a position (instant, last_seq) follows all messages of the instant.
create or replace function duewheel.last_seq() returns bigint
language sql immutable parallel safe
return 9223372036854775807;

-- A span as hours, minutes and seconds: a day is 24 hours in every time zone. An interval's days would follow the
-- session's time zone through the night in which its clocks change. A span beyond every limit is cut to one that can
-- still be added to an instant, so that the limit refuses it, and not Postgres. Not STRICT, or calls would not be
-- inlined.
create or replace function duewheel.span(p_span interval) returns interval
language sql immutable parallel safe
return case
    when isfinite(p_span)
        then make_interval(secs => greatest(least(extract(epoch from p_span), 9e12), -9e10)::double precision)
    else p_span
end;

-- Postgres stores an instant as microseconds since 2000, which is 262968 hours after 1970. Shifted by these hours, its
-- bytes are those of duewheel.unix_micros. That function computes with numerics, which would double an id's time.
-- role: everyone
create or replace function duewheel.message_id(
    p_topic_id integer, p_queue integer, p_deliver_at timestamptz, p_seq bigint
) returns text
language sql immutable strict parallel safe
return encode(int4send(p_topic_id) || int2send(p_queue::smallint)
    || timestamp_send(p_deliver_at at time zone interval '262968 hours') || int8send(p_seq), 'hex');

create or replace function duewheel.parse_message_id(
    p_message_id text, out topic_id integer, out queue smallint, out deliver_at timestamptz, out seq bigint
)
language plpgsql immutable as $$
begin
    if (p_message_id ~ '^[0-9a-f]{44}$') is not true then
        raise exception using
            errcode = 'DW010',
            message = format('%s is not a message id: an id is 44 lower-case hexadecimal digits',
                             coalesce('"' || left(p_message_id, 80) || '"', 'null')),
            hint = 'Pass the message_id of a send receipt or of a received message unchanged.';
    end if;
    topic_id := ('x' || substr(p_message_id, 1, 8))::bit(32)::integer;
    queue := ('x' || substr(p_message_id, 9, 4))::bit(16)::integer::smallint;
    deliver_at := duewheel.from_unix_micros(('x' || substr(p_message_id, 13, 16))::bit(64)::bigint);
    seq := ('x' || substr(p_message_id, 29, 16))::bit(64)::bigint;
exception when numeric_value_out_of_range or datetime_field_overflow then
    raise exception using
        errcode = 'DW010',
        message = format('"%s" is not a message id of this broker', p_message_id),
        hint = 'Pass the message_id of a send receipt or of a received message unchanged.';
end
$$;
