-- The messages stored in a range of peek_cuts.sql.
select * from duewheel.peek_rows(
    {topic_id}, {queue}, {from_at}, {from_seq}, {to_at}, {to_seq}, {tags}::text[], {filter}::jsonpath)
