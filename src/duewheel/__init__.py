"""duewheel: delay messages for Apache Airflow.

This folder holds the root package and nothing else: every subpackage is a link to the top-level folder of the
same name (``duewheel.store`` is ``store/``), so that an installed copy, an editable install, a type checker
and an editor all see one ordinary package tree without an import hook between them.

Importing ``duewheel`` imports nothing further; each subpackage is imported by its own name.
"""

from __future__ import annotations

__version__ = "0.2.0"

__all__ = ["__version__"]
