-- Messages whose slot is not made yet: those due in weeks or years. Upkeep moves each into its slot when that is made;
-- until then, and where no upkeep runs, statements find it here. The columns are those of duewheel.message, in the same
-- order.
create table duewheel.far_message (like duewheel.message including defaults including constraints including indexes);
-- Upkeep asks for what is due before the end of the last slot, of all topics.
create index far_message_due on duewheel.far_message (deliver_at);
