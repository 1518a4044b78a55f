-- Begins a part of what is written, in the transaction that stages its messages.
select duewheel.stage_part('{staging}', {part_id})
