-- Row types for the answers of functions whose parameters have the same names as the columns.
do $$
begin
    if to_regtype('duewheel.send_receipt') is null then
        -- outcome: sent, duplicate (of the idempotency key), kept or replaced (on_conflict)
        create type duewheel.send_receipt as (message_id text, deliver_at timestamptz, outcome text);
        create type duewheel.received_message as (
            receipt_handle text, message_id text, topic text, key text, tag text, properties jsonb, body bytea,
            born_at timestamptz, deliver_at timestamptz, attempt integer, expires_at timestamptz);
        create type duewheel.described_message as (
            topic text, message_id text, key text, tag text, properties jsonb, body bytea, born_at timestamptz,
            deliver_at timestamptz, asked_at timestamptz, message_group text, recalled boolean, released boolean);
        create type duewheel.lease_handle as (
            topic_id integer, queue integer, n bigint, token bigint, expires_at timestamptz, message_count integer);
        -- A message of a lease, or with lease alone the handle of the messages before it. origin_id is the message id
        -- of a retry.
        create type duewheel.leased_message as (
            lease duewheel.lease_handle, deliver_at timestamptz, seq bigint, born_at timestamptz, asked_at timestamptz,
            tag text, key text, properties jsonb, message_group text, body bytea, attempt integer, origin_id text);
        create type duewheel.message_position as (queue smallint, deliver_at timestamptz, seq bigint);
        -- How far a bulk recall is: in a slot, up to a position behind hi, which its topic was released to when the
        -- walk came to the slot.
        create type duewheel.recall_walk as (
            slot timestamptz, hi timestamptz, queue smallint, at timestamptz, seq bigint);
    end if;
end
$$;
