-- Ids of topics and groups come round again, so that what is made and removed for ever never uses them up. A broker may
-- have drawn more of them than there are.
select setval('duewheel.topic_topic_id_seq', 1048575) from duewheel.topic_topic_id_seq where last_value > 1048575;
alter sequence duewheel.topic_topic_id_seq maxvalue 1048575 cycle;
select setval('duewheel.consumer_group_group_id_seq', 1048575) from duewheel.consumer_group_group_id_seq
where last_value > 1048575;
alter sequence duewheel.consumer_group_group_id_seq maxvalue 1048575 cycle;

-- Deleted topics, and those of a subscription.
create index topic_parent on duewheel.topic (parent_topic_id) where parent_topic_id is not null;
create index topic_deleted on duewheel.topic (deleted_at) where deleted_at is not null;
