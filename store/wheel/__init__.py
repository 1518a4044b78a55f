"""The timing wheel, the process that releases messages at their instant, and its upkeep."""
