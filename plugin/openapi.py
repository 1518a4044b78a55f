"""Print the API's description, from which the types of the page's sources are generated::

python -m duewheel.plugin.openapi > plugin/ui/openapi.json
"""

from __future__ import annotations

import json
import sys

from duewheel.plugin.app import application


def description() -> str:
    """The API's description as JSON text."""
    return json.dumps(application().openapi(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(description())
