-- It has one more parameter; beside the old one a call that leaves parameters out would fit both.
drop function if exists duewheel.receive(text, text, text, integer, interval, text, timestamptz, jsonpath);
