-- Sets the position of a stream's group to the places that the stream has read.
select duewheel.stream_commit(%s, %s, %s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[])
