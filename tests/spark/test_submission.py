"""What the worker makes of the program that runs an application: another in the place of spark-submit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from airflow.sdk import Context

from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.spark.submission import Application, ApplicationFailed, Submission, SubmittedBatch

pytestmark = pytest.mark.timeout(60)

BATCH = SubmittedBatch("dbname=x", "orders", "canceller", None, "[]", 60.0, 4, 1)


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where to write the program that is run in the place of spark-submit."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    path = tmp_path / "bin" / "spark-submit"
    path.parent.mkdir()
    path.touch(0o755)
    return path


def submission() -> Submission:
    return Submission(Application(__file__, [], "dag.task", "local[1]"), BATCH)


def test_program_ends_though_a_child_holds_its_output(submit: Path, tmp_path: Path) -> None:
    """The child would keep the leases. What the program wrote last is read."""
    end_path = tmp_path / "end"
    submit.write_text(rf"""#!/bin/sh
mkfifo {end_path}
(read x < {end_path}) &
printf 'one\r\nt\303\266w\nlast'
exit 3
""")
    lines: list[str] = []
    with pytest.raises(ApplicationFailed, match="ended with exit code 3"):
        submission().run(lines.append)
    # The child is there still, and reads this.
    end_path.write_text("end\n")
    assert lines == ["one", "töw", "last"]


def test_secrets_in_the_output_are_not_logged(submit: Path) -> None:
    submit.write_text(r"""#!/bin/sh
cat <<'END'
postgresql://shop:p@w123@db/shop
"postgresql://shop:pw123@db:5432/shop?password=pw123"
password = 'my pw\'s 123' host=x
{"password": "my pw123", "x": 1} and token=pw123
{\"password\": \"my pw123\"}
PASSWORD='never closed pw123
Spark UI: http://10.0.0.1:4040/a@b
26/11/22 INFO spark://CoarseGrainedScheduler@10.0.0.1:34567 and 10:15
END
""")
    lines: list[str] = []
    submission().run(lines.append)
    assert lines == [
        "postgresql://shop:******@db/shop",
        '"postgresql://shop:******@db:5432/shop?password=******',
        "password = ****** host=x",
        '{"password": ******, "x": 1} and token=******',
        r"{\"password\": ******}",
        "PASSWORD=******",
        "Spark UI: http://10.0.0.1:4040/a@b",
        "26/11/22 INFO spark://CoarseGrainedScheduler@10.0.0.1:34567 and 10:15",
    ]


def test_link_that_cannot_be_kept_ends_no_work(submit: Path) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("API server: 503")

    operator = SparkConsumeMessagesOperator(
        task_id="work", topic="orders", group="canceller", application=__file__
    )
    operator._context = cast("Context", {"ti": SimpleNamespace(xcom_push=refuse)})
    submit.write_text("#!/bin/sh\necho 'Spark UI: http://10.0.0.1:4040'\necho worked\n")
    lines: list[str] = []
    submission().run(lines.append, operator._keep_ui_address)
    assert lines[-1] == "worked"
    assert operator.spark_ui_address == "http://10.0.0.1:4040"
