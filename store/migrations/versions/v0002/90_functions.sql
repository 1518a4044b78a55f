-- Functions whose result or parameters are others now, or that are gone: the files of this program make theirs anew.
drop function if exists duewheel.begin_send(text, integer, timestamptz);
drop function if exists duewheel.topic_stats(timestamptz);
drop function if exists duewheel.group_stats(timestamptz);
drop function if exists duewheel.make_slot(timestamptz);
drop function if exists duewheel.notice_slot(timestamptz);
drop function if exists duewheel.slots_between(timestamptz, timestamptz);
drop function if exists duewheel.slot_table(timestamptz);
drop function if exists duewheel.slot_start(timestamptz);
drop function if exists duewheel.fifo_floor(integer, smallint[], timestamptz);
