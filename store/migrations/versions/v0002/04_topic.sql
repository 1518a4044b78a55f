-- Everything of the topic that was due before is past retention and was finished by every group, though a slot of it
-- may be kept for other topics. Its logs are gone, and nobody can go back to it. Null: everything is kept.
alter table duewheel.topic add column kept_from timestamptz;
