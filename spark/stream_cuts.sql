-- The places at which to cut the messages between two places of a queue.
select c.at, c.seq, c.messages from duewheel.stream_cuts(%s, %s, %s, %s, %s, %s, %s) c
