-- Where a new stream begins.
select s.stream, s.topic_id, s.queue, s.at, s.seq, s.straggler from duewheel.stream_start(%s, %s, %s, %s, %s) s
