"""What can be done with topics, groups, messages and schedules, apart from consuming."""
