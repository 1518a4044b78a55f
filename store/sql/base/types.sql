-- Row types for the answers of functions whose parameters have the same names as the columns.
do $$
begin
    if to_regtype('duewheel.send_receipt') is null then
        -- outcome: sent, duplicate (of the idempotency key), kept or replaced (on_conflict)
        create type duewheel.send_receipt as (message_id text, deliver_at timestamptz, outcome text);
        -- outcome: recalled, already_released, replaced or not_found. message_id: the present id of the message; if it
        -- was replaced, the id of the message that replaced it; null if it was not found.
        create type duewheel.recall_receipt as (outcome text, message_id text);
        -- Of the messages of a key. outcome: recalled, already_released or not_found.
        create type duewheel.key_recall as (outcome text, recalled bigint, already_released bigint);
        create type duewheel.received_message as (
            receipt_handle text, message_id text, topic text, key text, tag text, properties jsonb, body bytea,
            born_at timestamptz, deliver_at timestamptz, attempt integer, expires_at timestamptz);
        create type duewheel.described_message as (
            topic text, message_id text, key text, tag text, properties jsonb, body bytea, born_at timestamptz,
            deliver_at timestamptz, asked_at timestamptz, message_group text, recalled boolean, released boolean,
            moved_from text, moved_to text, replaced_by text);
        create type duewheel.lease_handle as (
            topic_id integer, queue integer, n bigint, token bigint, expires_at timestamptz, message_count integer);
        -- A message of a lease, or with lease alone the handle of the messages before it. origin_id is the message id
        -- of a retry.
        create type duewheel.leased_message as (
            lease duewheel.lease_handle, deliver_at timestamptz, seq bigint, born_at timestamptz, asked_at timestamptz,
            tag text, key text, properties jsonb, message_group text, body bytea, attempt integer, origin_id text);
        -- A receive's position in a queue while it reads it: the columns of duewheel.queue_state, the clock, and the
        -- cursors of the present step. ends: of a step that chooses, its end if that differs from the queue's.
        -- most_stragglers: how many a step skips at most. ends_early: before messages that it might have taken.
        create type duewheel.queue_walk as (
            topic_id integer, queue smallint, now_at timestamptz, n bigint, to_at timestamptz, to_seq bigint,
            straggler_to bigint, revived_to timestamptz, leased_at timestamptz, hi timestamptz, has_messages boolean,
            last_straggler bigint, seen_below xid8, no_recalls boolean, none_late boolean, takes_every boolean,
            has_lease boolean, rows refcursor, ends refcursor, most_stragglers bigint, next_straggler_to bigint,
            ends_early boolean);
        create type duewheel.message_position as (queue smallint, deliver_at timestamptz, seq bigint);
        -- The late messages that a tick releases. The transactions late_xids have further messages after place.
        -- unfinished: all ended transactions with late messages left. more: the next tick has more to release at once.
        create type duewheel.late_release as (
            stragglers integer, place duewheel.message_position, late_xids xid8[], unfinished xid8[], more boolean);
        -- A slot, a group on a topic, or a topic, which a step of upkeep deals with.
        create type duewheel.upkeep_place as (starts_at timestamptz, group_id integer, topic_id integer);
        -- The position of a bulk recall in a slot. hi: the release instant of its topic when the recall reached the
        -- slot.
        create type duewheel.recall_walk as (
            slot timestamptz, hi timestamptz, queue smallint, at timestamptz, seq bigint);
        -- Rows that the steps of a history hand on to each other. A message for one group, as itself, a retry or a dead
        -- letter, and the topic and queue of its leases.
        create type duewheel.chain_link as (
            group_id integer, lease_topic_id integer, lease_queue smallint, topic_id integer, queue smallint,
            deliver_at timestamptz, seq bigint, attempt integer, message_type text, reason text, previous_seq bigint,
            lease_n bigint, released_at timestamptz, redriven_at timestamptz, is_discarded boolean,
            recalled_at timestamptz);
        -- A lease that held it, and its outcome for it.
        create type duewheel.chain_lease as (
            group_id integer, attempt integer, seq bigint, n bigint, leased_at timestamptz, consumer text,
            listed boolean, ends_at timestamptz, kind text, outcome_at timestamptz, reason text);
        -- step orders states of one instant.
        create type duewheel.message_state as (
            group_id integer, state text, at timestamptz, until_at timestamptz, attempt integer, consumer text,
            reason text, n bigint, step integer);
    end if;
end
$$;
