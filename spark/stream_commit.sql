-- Puts the group of a stream where it stands.
select duewheel.stream_commit(%s, %s, %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[])
