-- The losses of a stream that stands at these places: in how many queues retention has dropped messages that it had not
-- read, and up to how many messages.
select l.queues, l.messages
from duewheel.stream_lost(%s, %s, %s::integer[], %s::integer[], %s::bigint[]) l
