-- The functions for programs, as `\df+` shows them and the documentation lists them.

-- Topics
comment on function duewheel.create_topic is
    'Creates a topic. The same topic with the same settings may be created again; other settings raise DW002.';
comment on function duewheel.update_topic is
    'Changes settings of a topic; a setting that is not given stays.';
comment on function duewheel.delete_topic is
    'Deletes a topic with its messages and subscriptions.';

-- Sending
comment on function duewheel.send(
    text, bytea, interval, timestamptz, integer, text, text, jsonb, text, text, text, timestamptz) is
    'Sends a message in your transaction. A DELAY topic requires one of delay, deliver_at and delay_level.';
comment on function duewheel.send(
    text, jsonb, interval, timestamptz, integer, text, text, jsonb, text, text, text, timestamptz) is
    'Sends a message in your transaction; the JSON is sent as UTF-8 text.';
comment on function duewheel.send(
    text, text, interval, timestamptz, integer, text, text, jsonb, text, text, text, timestamptz) is
    'Sends a message in your transaction; the text is sent as UTF-8.';

-- Recalling
comment on function duewheel.recall is
    'Recalls a message, wherever it was moved, and names its present id. It counts when you commit.';
comment on function duewheel.recall_key is
    'Recalls all messages that wait under a key. outcome: recalled, already_released (one had been) or not_found.';
comment on function duewheel.answer_key is
    'Answers the run that waits under a key: answered, too_late, already_answered, recalled, not_found or early.';
comment on function duewheel.begin_wait is
    'Sends the timeout of a wait, in place of one that waits under its key. An early answer ends it when you commit.';
comment on function duewheel.answers is
    'The outcomes of waits, by the ids of their messages: waiting, answered, timed_out, recalled or not_found.';
comment on function duewheel.early_answers is
    'The early answers that no wait has taken yet, the next to be forgotten first.';
comment on function duewheel.withdraw_early_answer is
    'Deletes an early answer when you commit. False if there is none: a wait took it, or it was withdrawn.';
comment on function duewheel.recall_many is
    'Recalls all messages that wait and meet every criterion given; without one it requires everything => true.';
comment on function duewheel.reschedule is
    'Moves a message that waits to another instant and returns a receipt with its new id. Too late raises DW012.';
comment on function duewheel.reschedule_key is
    'Moves all messages that wait under a key to another instant; the same idempotency key again moves nothing.';

-- Consuming
comment on function duewheel.receive is
    'Leases due messages to a consumer group; does not wait. Commit before the work, and answer after it.';
comment on function duewheel.ack is
    'Says that the work on messages is done. After the end of the lease it raises DW011 and changes nothing.';
comment on function duewheel.fence is
    'Reserves leases for your transaction before the work: other fences and answers wait until it ends.';
comment on function duewheel.nack is
    'Says that the work failed: the messages are retried after delay, or after the interval of their group.';
comment on function duewheel.skip is
    'Says that the work on messages is left undone on purpose: the history says Skipped and why.';
comment on function duewheel.dead_letter is
    'Says that the work failed and no retry would help: the messages are dead letters at once.';
comment on function duewheel.give_back is
    'Says that there was no work: the messages are ready again at once, and no attempt is counted.';
comment on function duewheel.change_invisible_duration is
    'Changes how long the lease of these messages lasts, counted from now.';

-- Groups
comment on function duewheel.subscribe is
    'Creates a consumer group, or a broadcasting instance, unless it exists, and returns its topics.';
comment on function duewheel.set_retry_policy is
    'Sets how a consumer group retries, and returns the previous settings.';
comment on function duewheel.rewind is
    'Sets the position of a consumer group to the messages released since an instant; its leases end.';
comment on function duewheel.rewind_chunk is
    'Does the next portion of the leases and retries that a rewind has left.';
comment on function duewheel.rename_group is
    'Gives a consumer group another name; its positions, leases, retries and dead letters stay.';
comment on function duewheel.delete_group is
    'Deletes a consumer group, or its part on one topic. Repeat the call while it returns more.';
comment on function duewheel.set_subscription is
    'Sets which messages a group receives of a topic from now on, and returns what it received before.';
comment on function duewheel.pause_group is
    'Lets a consumer group get no messages until it is resumed; returns on how many topics it was not paused.';
comment on function duewheel.resume_group is
    'Ends the pause of a consumer group; returns on how many topics it was paused.';
comment on function duewheel.retry_now is
    'Makes waiting retries due now; returns the ids of the messages that waited.';
comment on function duewheel.running_leases is
    'The leases that run, the first to end at the top. A last row without a group says that there may be more.';
comment on function duewheel.release_lease is
    'Ends a lease as if it had expired; returns how many messages are ready again, null if it had ended.';

-- Looking
comment on function duewheel.find is
    'A message by its id, or by one that it had before it was moved; also one that was recalled.';
comment on function duewheel.find_key is
    'The messages of a key, recalled ones too.';
comment on function duewheel.history is
    'The states of a message in the order of time, for each consumer group.';
comment on function duewheel.list_messages is
    'A page of messages, without bodies, by topic and instant, or by topic and key.';
comment on function duewheel.dead_letter_page is
    'A page of the dead letters of a consumer group, with reason and attempts.';
comment on function duewheel.redrive is
    'Sends dead letters that meet every criterion given to their group again, each once.';
comment on function duewheel.topic_stats is
    'For each topic the number of waiting messages and the next instant.';
comment on function duewheel.group_stats is
    'For each consumer group and topic the number of messages that are ready, in flight, to be retried and dead.';

-- Schedules
comment on function duewheel.schedules is
    'All schedules, with their last and next occurrences.';
comment on function duewheel.pause_schedule is
    'Pauses a schedule; returns the number of messages, sent ahead, that it recalled.';
comment on function duewheel.delete_schedule is
    'Deletes a schedule; returns the number of messages, sent ahead, that it recalled.';

-- Upkeep
comment on function duewheel.upkeep_state is
    'The backlog of upkeep, and when it was last done.';
comment on function duewheel.upkeep_holders is
    'The sessions and prepared transactions that have held upkeep up for over an hour.';
comment on procedure duewheel.tick is
    'Releases the due messages of a topic and its groups, and returns whether there were any. It commits itself.';
comment on function duewheel.upkeep_step is
    'Does the next portion of upkeep, and returns the state to call it with again.';
comment on function duewheel.settings is
    'The settings of the broker, and the size of its messages on disk.';
comment on function duewheel.update_settings is
    'Bounds the size of all messages, and how long they are kept for abandoned groups. A null setting stays.';
comment on function duewheel.rebase is
    'Takes over a broker that came by a dump and restore into another database cluster.';
