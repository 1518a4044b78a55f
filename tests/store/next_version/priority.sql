-- Sends a message with a priority, which only programs of the next version do.
create or replace function duewheel.send_urgent(
    p_topic text, p_body text, p_delay interval, p_priority smallint, p_now timestamptz
) returns void
language plpgsql as $$
declare
    v_born_at constant timestamptz := case when pg_current_xact_id() is not null then coalesce(p_now, clock_timestamp()) end;
begin
    insert into duewheel.far_message (topic_id, queue, deliver_at, seq, born_at, priority, body)
    select t.topic_id, 0, v_born_at + p_delay, nextval('duewheel.message_block') * 65536, v_born_at, p_priority,
           convert_to(p_body, 'UTF8')
    from duewheel.topic t where t.name = p_topic;
end
$$;
