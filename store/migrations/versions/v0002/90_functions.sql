-- Functions whose result or parameters are others now: the files of this program make theirs anew. What calls of the
-- version before still ask for stays: one that has begun goes on with the text it began with.
drop function if exists duewheel.topic_stats(timestamptz);
drop function if exists duewheel.group_stats(timestamptz);
drop function if exists duewheel.make_slot(timestamptz);
drop function if exists duewheel.tick_topic(integer, timestamptz, boolean, boolean, boolean);
drop function if exists duewheel.quiet_until(timestamptz, timestamptz, boolean, interval);
