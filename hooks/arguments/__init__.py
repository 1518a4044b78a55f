"""Arguments of operators, sensors and triggers: checked in the DAG file, rendered, and mapped."""

from __future__ import annotations
