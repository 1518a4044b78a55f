-- Ranges of the messages that are due from one instant on and before another.
select c.topic_id, c.queue, c.from_at, c.from_seq, c.to_at, c.to_seq from duewheel.peek_cuts(%s, %s, %s, %s) c
