"""A real Postgres as a Python package, for machines that have none (extra ``embedded``).

The broker does not need it; demos, tests and development do. ``duewheel.embedded.postgres`` starts a server
in a directory.
"""
