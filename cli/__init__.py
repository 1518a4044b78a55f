"""The command line: `duewheel`, also `python -m duewheel.cli`.

The language is explained in :mod:`duewheel.cli.main`. Every command talks to the database given by `--dsn` or
`DUEWHEEL_DSN`, else to an embedded Postgres in the user's data folder, which needs no set-up. `--json` gives
JSON on standard output instead of a table.

Exit status: 0 done; 1 the broker refused or could not be reached (the reason is on standard error); 2 wrong
usage; 3 nothing was due, found, recalled or redriven. So `while duewheel message receive ...` ends when no
message is due.
An empty list has status 0.

It needs the extra ``cli``; importing this package does not.
"""

from __future__ import annotations
