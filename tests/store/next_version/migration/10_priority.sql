-- All that is changed below, at once, and first what every statement asks for first: whoever has to wait for this has
-- no lock yet that the upgrade would wait for.
lock table duewheel.topic, duewheel.message, duewheel.far_message in access exclusive mode;

alter table duewheel.message add column priority smallint not null default 0;
alter table duewheel.far_message add column priority smallint not null default 0;
create or replace view duewheel.any_message as
select * from duewheel.message
union all
select * from duewheel.far_message;
