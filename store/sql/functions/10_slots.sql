-- Slots: hourly partitions of duewheel.message, named message_YYYYMMDDHH in UTC.

create or replace function duewheel.slot_start(p_at timestamptz) returns timestamptz
language sql immutable strict parallel safe
return date_bin(interval '1 hour', p_at, timestamptz '2000-01-01 00:00:00+00');

create or replace function duewheel.slot_table(p_start timestamptz) returns text
language sql immutable strict
return 'message_' || to_char(p_start at time zone 'UTC', 'YYYYMMDDHH24');

-- Lets a transaction that has sent before see a slot made since: it goes by the list of slots it began with, as long as it
-- asks for no lock it does not hold. This is one.
create or replace function duewheel.notice_slot(p_start timestamptz) returns void
language plpgsql as $$
begin
    execute format('lock table duewheel.%I in row exclusive mode', duewheel.slot_table(p_start));
end
$$;

-- Makes the slot of an instant if it is missing. ATTACH takes no lock that a sender or a consumer waits for.
create or replace function duewheel.make_slot(p_at timestamptz) returns void
language plpgsql as $$
declare
    v_start timestamptz := duewheel.slot_start(p_at);
    v_end timestamptz := v_start + interval '1 hour';
    v_table text := duewheel.slot_table(v_start);
begin
    if exists (select from duewheel.slot s where s.starts_at = v_start) then
        return;
    end if;
    perform pg_advisory_xact_lock(duewheel.tick_lock_class(), 0);
    -- The catalogue is up to date even where the caller's snapshot is older than the slot.
    if to_regclass('duewheel.' || v_table) is not null then
        return;
    end if;
    execute format('create table duewheel.%I (like duewheel.message including defaults including constraints)', v_table);
    execute format('alter table duewheel.message attach partition duewheel.%I for values from (%L) to (%L)',
                   v_table, v_start, v_end);
    insert into duewheel.slot (starts_at, ends_at, table_name) values (v_start, v_end, v_table);
end
$$;

create or replace function duewheel.make_slots(p_instants timestamptz[]) returns void
language plpgsql as $$
declare
    v_has_written constant boolean := pg_current_xact_id_if_assigned() is not null;
    v_start timestamptz;
begin
    for v_start in
        select distinct duewheel.slot_start(i) from unnest(p_instants) i
        except
        select s.starts_at from duewheel.slot s where s.starts_at = any (
            array(select duewheel.slot_start(i) from unnest(p_instants) i))
        order by 1
    loop
        perform duewheel.make_slot(v_start);
    end loop;
    if v_has_written then
        perform duewheel.notice_slot(s) from (select distinct duewheel.slot_start(i) from unnest(p_instants) i) slots (s);
    end if;
end
$$;

-- The slots of the time ahead, as far as delays reach, up to a week: a sender in a long transaction should not have to make
-- one, as others who send into it would wait. Later slots are made by the first send into them.
create or replace function duewheel.make_slots_ahead(p_now timestamptz) returns void
language plpgsql as $$
begin
    perform duewheel.make_slots(array(
        select generate_series(
            p_now,
            p_now + interval '2 hours' + least(interval '7 days', (
                select coalesce(max(t.max_delay), interval '1 day') from duewheel.topic t where t.deleted_at is null)),
            interval '1 hour')));
end
$$;
