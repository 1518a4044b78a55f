-- Sends the messages of these parts; null if they were sent before.
select duewheel.publish_batch(%s, %s, %s, %s::bigint[], %s::bigint[], p_keep => %s)
