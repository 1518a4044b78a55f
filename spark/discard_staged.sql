-- Forgets what is staged under this name.
select duewheel.discard_staged(%s)
