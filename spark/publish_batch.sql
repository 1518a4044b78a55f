-- Sends what these parts have staged; null where it was sent before.
select duewheel.publish_batch(%s, %s, %s, %s::bigint[], %s::bigint[], p_keep => %s)
