-- How far the broker's numbers are reported to Airflow's metrics: one row, so that of several triggerers each release
-- is counted by one.
create table duewheel.report (
    is_only boolean primary key default true check (is_only),
    reported_to timestamptz not null
);
insert into duewheel.report (reported_to) values ('-infinity');
