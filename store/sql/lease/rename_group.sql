-- Renaming groups. Leases, positions and retries name a group by its number, so all of them stay.

-- Gives a group another name, with its retry and dead-letter topics; of a broadcasting group all instances. Consumers
-- that are running continue under the new name. No group that is made by subscribing gets the old one, which another
-- rename may give. Returns how many groups and instances got the new name.
-- role: admin
create or replace function duewheel.rename_group(consumer_group text, new_name text) returns integer
language plpgsql set lock_timeout = '10s' as $$
#variable_conflict use_column
declare
    v_renamed integer;
begin
    perform duewheel.require_read_committed();
    perform duewheel.check_subscriber(rename_group.new_name, 'earliest', 'clustering', null, null, null);
    -- In one order.
    perform duewheel.lock_until(array(
        select duewheel.group_lock_key(name)
        from unnest(array[rename_group.consumer_group, rename_group.new_name]) name order by 1));
    if exists (select from duewheel.consumer_group g where rename_group.new_name in (g.name, g.broadcast_group)) then
        raise exception using
            errcode = 'DW010',
            message = format('there is a group "%s" already', rename_group.new_name),
            hint = 'Choose another name. If a consumer created it by mistake, delete that group first.';
    end if;
    -- Before their topics, as removing a subscription does.
    perform from duewheel.consumer_group g join duewheel.subscription s on s.group_name = g.name
    where coalesce(g.broadcast_group, g.name) = rename_group.consumer_group
    order by s.topic_id, s.group_id for update of s;
    update duewheel.topic t
    set name = format('%s%s%%%s', case t.topic_id when s.retry_topic_id then '%RETRY%' else '%DLQ%' end,
                      rename_group.new_name, o.name)
    from duewheel.consumer_group g
    join duewheel.subscription s on s.group_name = g.name
    join duewheel.topic o on o.topic_id = s.topic_id
    where g.name = rename_group.consumer_group and t.topic_id in (s.retry_topic_id, s.dead_letter_topic_id)
      -- The topics of a deleted topic keep a name that no other topic gets.
      and t.deleted_at is null;
    update duewheel.consumer_group g set old_names = array_remove(g.old_names, rename_group.new_name)
    where g.old_names @> array[rename_group.new_name] and g.old_names <> '{}';
    update duewheel.consumer_group g
    set old_names = g.old_names || rename_group.consumer_group,
        name = concat_ws('/', rename_group.new_name, g.instance),
        broadcast_group = case when g.broadcast_group is not null then rename_group.new_name end
    where coalesce(g.broadcast_group, g.name) = rename_group.consumer_group;
    get diagnostics v_renamed = row_count;
    if v_renamed = 0 then
        raise exception using
            errcode = 'DW014',
            message = format('there is no consumer group "%s"', left(rename_group.consumer_group, 127)),
            hint = 'Look at the view duewheel.groups; an instance of a broadcasting group is renamed with its group.';
    end if;
    return v_renamed;
exception when lock_not_available then
    perform duewheel.raise_busy(format('group "%s" or one of its topics', left(rename_group.consumer_group, 127)));
end
$$;
