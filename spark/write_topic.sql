-- The type of a topic, and whether this login may send.
select t.message_type, has_table_privilege('duewheel.staged_message', 'insert')
from duewheel.topics t where t.topic = %s
