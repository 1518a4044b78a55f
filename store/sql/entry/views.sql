-- The views that programs may read. Tables are not an interface.

create or replace view duewheel.topics as
select t.name as topic, t.message_type, t.queues, t.max_delay, t.out_of_range, t.granularity, t.retention,
       t.created_at, t.delay_levels, t.dead_letter_retention
from duewheel.topic t
where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER');

-- How far each group has read a topic: read_to is the position of the queue that is furthest behind; null if no message
-- has been released or read yet. stalled_since is set if the group has stalled. For a FIFO topic the retry settings are
-- the ordered ones; a max_retries of 2147483647 means no limit.
create or replace view duewheel.groups as
select coalesce(g.broadcast_group, g.name) as consumer_group, t.name as topic, t.message_type, g.mode, g.instance,
       case when t.message_type = 'FIFO' then g.ordered_max_retries else g.max_retries end as max_retries,
       case when t.message_type = 'FIFO' then array[g.ordered_interval] else g.retry_intervals end as retry_intervals,
       case when t.message_type = 'FIFO' then 0 else g.retry_jitter end as retry_jitter,
       g.settings_by, g.settings_at, p.read_to, p.released_to, s.created_at, s.seen_at,
       p.stalled_since, s.paused_at,
       case when s.tags is null then '*' else duewheel.tag_expression(s.tags) end as tags, s.filter
from duewheel.subscription s
join duewheel.consumer_group g on g.name = s.group_name
join duewheel.topic t on t.topic_id = s.topic_id
cross join lateral duewheel.progress(s.group_id, t.topic_id) p
where t.deleted_at is null;

create or replace view duewheel.waiting as
select t.name as topic, duewheel.message_id(m.topic_id, m.queue, m.deliver_at, m.seq) as message_id, m.key, m.tag,
       m.born_at, m.deliver_at
from duewheel.topic t
join duewheel.any_message m on m.topic_id = t.topic_id
where t.deleted_at is null and t.message_type not in ('RETRY', 'DEAD_LETTER')
  and (m.deliver_at > coalesce((
           select k.hi from duewheel.tick k
           where k.topic_id = t.topic_id order by k.hi desc, k.tick_id desc limit 1), '-infinity')
       or exists (
           select from duewheel.held_back b
           where b.topic_id = m.topic_id and b.deliver_at = m.deliver_at and b.queue = m.queue and b.seq = m.seq))
  and not exists (
      select from duewheel.recall r
      where r.topic_id = m.topic_id and r.queue = m.queue and r.deliver_at = m.deliver_at and r.seq = m.seq);
