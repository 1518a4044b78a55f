"""Ratios measured side by side: duewheel against the physical limit and against what a user would write.

An absolute rate depends more on the machine than on the program. So every figure here is a *pair*: ours and
a baseline, run one after the other in the same run on the same server with the same driver and the same rows.
A pair is run five times, and the order changes each time so that a drift of the machine affects both. The
report gives the median of the pairs' ratios, with the smallest and the largest.

The baselines are written as a competent user writes them: COPY and not INSERT for bulk, one round trip if
that is enough, a partial index on waiting rows, autovacuum set tighter than by default. Both sides get
fresh databases, are vacuumed and analyzed alike, are warmed up, and pay for their own client-side work.

`python -m benchmarks` runs the subjects of the main table and writes `results/table.md` and
`results/results.json`. A module with a `main` is a program for one question on Postgres as it is installed,
untuned and never analyzed: `python -m benchmarks.NAME` writes `results/NAME.md`.
"""
