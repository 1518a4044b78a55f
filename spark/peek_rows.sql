-- What is stored in such a range.
select * from duewheel.peek_rows(
    {topic_id}, {queue}, {from_at}, {from_seq}, {to_at}, {to_seq}, {tags}::text[], {filter}::jsonpath)
