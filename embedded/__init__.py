"""A real Postgres and a Java runtime as Python packages, for machines that have neither (extra ``embedded``).

The broker needs neither; demos, tests and development do. ``duewheel.embedded.postgres`` starts a server in a
directory, ``duewheel.embedded.java`` finds the Java that PySpark runs on.
"""
