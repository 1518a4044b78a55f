-- Begins a part of a write, in the transaction that stages its messages.
select duewheel.stage_part('{staging}', {part_id})
