-- All that is changed below, at once, and first what every statement asks for first: whoever has to wait for this has
-- no lock yet that the upgrade would wait for.
lock table duewheel.topic, duewheel.tick, duewheel.lease, duewheel.lease_event in access exclusive mode;
