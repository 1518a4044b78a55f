-- In how many queues retention has dropped something behind the places of a stream, and of how many messages.
select l.queues, l.messages
from duewheel.stream_lost(%s, %s, %s::integer[], %s::integer[], %s::bigint[]) l
