-- Slots: partitions of duewheel.message by the delivery instant, the slots of the wheel on disk. A slot is a day wide,
-- or as many days as it takes to have at most about 16 of them within the shortest retention. Upkeep creates slots for
-- the next days and drops them whole; messages that are kept for longer move out first (upkeep/outlive.sql).
--
-- Senders create no slots. A message due in weeks or years has no slot yet and is stored in duewheel.far_message, a
-- plain table; upkeep moves it into its slot in time. The move deletes and inserts in one transaction and keeps the
-- position and the xid column. So every statement finds the message in exactly one of the two tables, and no reader
-- notices. A message that was not moved is released and delivered from duewheel.far_message: upkeep may be late, or
-- never run.

create or replace function duewheel.slot_at(p_at timestamptz) returns duewheel.slot
language plpgsql stable as $$
declare
    v_slot duewheel.slot;
begin
    select * into v_slot from duewheel.slot s where s.starts_at <= p_at order by s.starts_at desc limit 1;
    return case when v_slot.ends_at > p_at then v_slot end;
end
$$;

-- The same, if it may hold messages already.
create or replace function duewheel.open_slot_at(p_at timestamptz) returns duewheel.slot
language plpgsql stable as $$
declare
    v_slot duewheel.slot := duewheel.slot_at(p_at);
begin
    return case when not exists (select from duewheel.closed_slot c where c.starts_at = v_slot.starts_at)
        then v_slot end;
end
$$;

-- Opens the slots that every transaction and every plan knows by now. A session learns of a new partition when it takes
-- a lock that it does not hold yet. So every session that held a lock on duewheel.message when the slot was created has
-- to end its transaction first. One of them may have learned of the slot while it made a plan, and then keeps that plan
-- without the slot: if a function that reads messages is inlined, Postgres does not know of the table before the plan
-- is made. So when these transactions have ended, all sessions are notified again, and transactions that use such a
-- plan meanwhile have to end, too. Each step runs in a later transaction than the step before.
create or replace function duewheel.open_slots() returns void
language plpgsql as $$
begin
    if not exists (select from duewheel.closed_slot)
       -- Held by the session that creates a slot or announces it, until all others can learn of it.
       or not pg_try_advisory_xact_lock(duewheel.tick_lock_class(), 0) then
        return;
    end if;
    update duewheel.closed_slot c
    set awaited = array(
        select l.virtualtransaction from pg_locks l
        where l.locktype = 'relation' and l.relation = 'duewheel.message'::regclass
          and l.database = (select d.oid from pg_database d where d.datname = current_database())
          -- A prepared transaction reads nothing any more.
          and l.pid is not null and (c.awaited is null or l.virtualtransaction = any (c.awaited)))
    where c.xmin is distinct from pg_current_xact_id_if_assigned()::xid;
    delete from duewheel.closed_slot c where c.awaited = '{}' and c.told;
    if exists (select from duewheel.closed_slot c where c.awaited = '{}') then
        -- Changes nothing, but every plan that reads the table, or a slot of it, is made again.
        alter table only duewheel.message alter column born_at set statistics -1;
        update duewheel.closed_slot c set told = true, awaited = null where c.awaited = '{}';
    end if;
end
$$;

-- In whole days from the start of the year 2000 in UTC.
create or replace function duewheel.slot_width() returns interval
language sql stable
begin atomic
    select make_interval(hours => 24 * greatest(
        1, ceil(extract(epoch from coalesce(min(retention), '0')) / 86400 / 16)::integer))
    from duewheel.topic where deleted_at is null;
end;

-- Makes the slot of an instant if it is missing, as wide as slots are now and its neighbours leave room for. ATTACH
-- takes no lock that a sender or a consumer waits for. Instants are written into statements in ISO's way, which alone
-- says for certain which one is meant.
create or replace function duewheel.make_slot(p_at timestamptz) returns duewheel.slot
language plpgsql set datestyle = 'ISO' as $$
declare
    v_slot duewheel.slot := duewheel.slot_at(p_at);
    v_width interval;
begin
    if v_slot.starts_at is not null then
        return v_slot;
    end if;
    perform pg_advisory_xact_lock(duewheel.tick_lock_class(), 0);
    v_slot := duewheel.slot_at(p_at);
    if v_slot.starts_at is not null then
        return v_slot;
    end if;
    v_width := duewheel.slot_width();
    v_slot.starts_at := date_bin(v_width, p_at, timestamptz '2000-01-01 00:00:00+00');
    v_slot.ends_at := v_slot.starts_at + v_width;
    select greatest(v_slot.starts_at, max(s.ends_at) filter (where s.ends_at <= p_at)),
           least(v_slot.ends_at, min(s.starts_at) filter (where s.starts_at > p_at))
    into v_slot.starts_at, v_slot.ends_at
    from duewheel.slot s;
    v_slot.table_name := 'message_' || to_char(v_slot.starts_at at time zone 'UTC', 'YYYYMMDDHH24');
    execute format('create table duewheel.%I (like duewheel.message including defaults including constraints)',
                   v_slot.table_name);
    execute format('alter table duewheel.message attach partition duewheel.%I for values from (%L) to (%L)',
                   v_slot.table_name, v_slot.starts_at, v_slot.ends_at);
    -- Transaction ids grow and rows are written once, so a page of this index is full when the next one begins.
    execute (
        select format('alter index %s set (fillfactor = 100)', i.inhrelid::regclass)
        from pg_inherits i join pg_index x on x.indexrelid = i.inhrelid
        where i.inhparent = 'duewheel.message_xid'::regclass
          and x.indrelid = format('duewheel.%I', v_slot.table_name)::regclass);
    insert into duewheel.slot (starts_at, ends_at, table_name)
    values (v_slot.starts_at, v_slot.ends_at, v_slot.table_name);
    insert into duewheel.closed_slot (starts_at) values (v_slot.starts_at);
    return v_slot;
end
$$;

-- The slots from now on as far as most delays reach, and at most eight days.
create or replace function duewheel.make_slots_ahead(p_now timestamptz) returns void
language plpgsql as $$
declare
    v_until constant timestamptz := p_now + interval '24 hours' + least(interval '168 hours', (
        select coalesce(max(t.max_delay), interval '24 hours') from duewheel.topic t where t.deleted_at is null));
    v_at timestamptz := p_now;
begin
    while v_at < v_until loop
        v_at := (duewheel.make_slot(v_at)).ends_at;
    end loop;
end
$$;

-- Moves at most p_limit far messages into their slots, and creates the slots of messages that are due, for the next
-- call. Returns how many, and whether there is more to do now.
create or replace function duewheel.settle_far(
    p_limit integer, p_now timestamptz, out settled bigint, out more boolean
)
language plpgsql set plan_cache_mode = force_generic_plan set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    v_now constant timestamptz := duewheel.clock_at(p_now);
    v_at timestamptz;
    v_slot duewheel.slot;
    v_count bigint;
    -- So many slots are made in one transaction.
    v_most constant integer := 16;
    v_made integer := 0;
begin
    settled := 0;
    perform duewheel.open_slots();
    -- The next call can open slots of which all sessions were notified again.
    more := exists (select from duewheel.closed_slot c where c.told and c.awaited is null);
    -- No reader may get messages of a deleted topic.
    delete from duewheel.far_message f
    where f.ctid = any (array(
        select d.ctid from duewheel.topic t
        cross join lateral (select d.ctid from duewheel.far_message d where d.topic_id = t.topic_id limit p_limit) d
        where t.deleted_at is not null limit p_limit));
    get diagnostics v_count = row_count;
    more := more or v_count = p_limit;
    v_at := '-infinity';
    loop
        -- The first far message of a slot that is there, or is to be there.
        select f.deliver_at into v_at from duewheel.far_message f
        where timezone('UTC', f.deliver_at) >= timezone('UTC', v_at)
          and timezone('UTC', f.deliver_at)
              < timezone('UTC', greatest(v_now, (select max(s.ends_at) from duewheel.slot s)))
        order by timezone('UTC', f.deliver_at) limit 1;
        exit when not found;
        if exists (select from duewheel.outlived_slot o where o.starts_at <= v_at and o.ends_at > v_at) then
            -- These have moved out of it.
            select o.ends_at into v_at from duewheel.outlived_slot o where o.starts_at <= v_at and o.ends_at > v_at;
            continue;
        end if;
        v_slot := duewheel.slot_at(v_at);
        if v_slot.starts_at is null and v_at <= v_now then
            v_slot := duewheel.make_slot(v_at);
            v_made := v_made + 1;
            more := true;
            exit when v_made >= v_most;
        end if;
        if v_slot.starts_at is null then
            select s.starts_at into v_at from duewheel.slot s where s.starts_at > v_at order by s.starts_at limit 1;
            continue;
        elsif exists (select from duewheel.closed_slot c where c.starts_at = v_slot.starts_at) then
            v_at := v_slot.ends_at;
            continue;
        end if;
        with moved as (
            delete from duewheel.far_message f
            -- As a join, each of the portion might be compared with each row of the table.
            where f.ctid = any (array(
                select d.ctid from duewheel.far_message d
                where timezone('UTC', d.deliver_at) >= timezone('UTC', v_at)
                  and timezone('UTC', d.deliver_at) < timezone('UTC', v_slot.ends_at)
                order by timezone('UTC', d.deliver_at) limit p_limit - settled for update skip locked))
            returning f.*
        )
        insert into duewheel.message select * from moved;
        get diagnostics v_count = row_count;
        settled := settled + v_count;
        if settled >= p_limit then
            more := true;
            return;
        end if;
        v_at := v_slot.ends_at;
    end loop;
end
$$;
