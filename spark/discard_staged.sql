-- Discards the messages staged under this name.
select duewheel.discard_staged(%s)
