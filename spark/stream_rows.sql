-- The messages released between two places of a queue; without stragglers, those stored there.
select * from duewheel.stream_rows(
    {topic_id}, {queue}, {from_at}, {from_seq}, {to_at}, {to_seq}, {straggler_from}, {straggler_to},
    {tags}::text[], {filter}::jsonpath)
