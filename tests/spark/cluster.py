"""What the tests on a standalone cluster share: its page, its settings, and the package to ship."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pyspark

import duewheel

SPARK_HOME = Path(pyspark.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-cluster.md").read_text()

#: Of a query: Spark copies a task soon when it is slow.
CONF = {
    "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.ui.port": "0",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": False,
    "spark.speculation": True,
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
}


def zip_of_the_package(folder: Path) -> Path:
    """A zip in this folder with the files that a wheel has, for executors that have only its dependencies."""
    package = Path(duewheel.__file__).parent
    path = folder / "duewheel.zip"
    with zipfile.ZipFile(path, "w") as written:
        # The folders of the package are links in a checkout.
        for parent, _, names in os.walk(package, followlinks=True):
            if "node_modules" in parent:
                continue
            for name in names:
                if name.endswith((".py", ".sql")) or name == "manifest.txt":
                    file = Path(parent, name)
                    written.write(file, file.relative_to(package.parent))
    return path
