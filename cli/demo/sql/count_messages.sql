-- Parameters: topic, group.
select
    (select count(*) from duewheel.waiting where waiting.topic = %(topic)s) as waiting,
    coalesce((
        select stats.ready + stats.inflight
        from duewheel.group_stats() as stats
        where stats.topic = %(topic)s and stats.consumer_group = %(group)s
    ), 0) as due;
