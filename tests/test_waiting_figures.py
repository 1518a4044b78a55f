"""The figures in README.md, measuring.md and the how-tos are those that were measured."""

from __future__ import annotations

import inspect
import json
import re
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import latency, ours
from benchmarks.report import RESULTS, number

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "how-to" / "when-to-use-what.md"
OPERATE = ROOT / "docs" / "how-to" / "operate.md"
README = ROOT / "README.md"
MEASURING = ROOT / "docs" / "measuring.md"
JOBS = ("write", "read", "stream")
WAYS = ("run_after", "date_time_trigger")
ROWS = {
    "rows": "rows in Airflow's database for each that waits",
    "rows-left": "rows left there for each when all is over",
    "memory": "more memory of triggerer and scheduler, MB",
    "recall": "one recall, ms",
    "first-line-p50": "due instant to the first line of the task, p50, ms",
    "first-line-p99": "the same, p99, ms",
    "told": "of 10 recalls while its task runs, told that it is too late",
}
#: Of the messages whose size on disk was measured.
BODY_BYTES = 100


def readings(row: str, way: str) -> tuple[float, float]:
    """Of a line that was measured, the medians of our readings and of the other's."""
    measured_row = (measured("waiting_in_airflow") | measured("first_line")).get
    found = measured_row(f"{row}-{way}-1000") or measured_row(f"{row}-{way}")
    assert found, (row, way)
    return median(found["ours"]), median(found["baseline"])


def table() -> str:
    """The table of the three ways."""
    lines = [
        "| | duewheel | a run with `run_after` each | a deferred `DateTimeTrigger` each |",
        "|---|---|---|---|",
    ]
    for name in ROWS:
        (ours, _), *_ = both = [readings(name, way) for way in WAYS]
        shown = "{:.0f}".format if name == "told" else number
        lines.append(f"| {ROWS[name]} | {' | '.join(map(shown, (ours, *(its for _, its in both))))} |")
    return "\n".join(lines) + "\n"


def in_airflow() -> str:
    """README's sentences about timeouts that wait in Airflow."""
    (memory, of_runs), (_, of_triggers) = (readings("memory", way) for way in WAYS)
    (ours, rows_of_runs), (_, rows_of_triggers) = (readings("rows", way) for way in WAYS)
    assert ours == 0
    late, of_a_run = readings("first-line-p50", "run_after")
    return (
        f"Where 1 000 timeouts wait, Airflow keeps no row for them, and {number(memory)} MB of memory. Runs"
        f" with `run_after` take {rows_of_runs:.0f} rows each and {number(of_runs)} MB, deferred"
        f" `DateTimeTrigger`s {rows_of_triggers:.0f} rows each and {number(of_triggers)} MB. The task of a"
        f" lone timeout begins sooner with `run_after`: {number(of_a_run)} ms after its instant, where"
        f" duewheel takes {number(late)} ms"
    )


def of_many() -> str:
    """The sentence about 100 000 messages."""
    memory = median(measured("waiting_in_airflow")["memory-alone-100000"]["ours"])
    return f"100 000 messages that wait cost triggerer and scheduler {number(memory)} MB more"


def measured(program: str) -> dict[str, dict[str, Any]]:
    """The lines of a program's results, by their names."""
    document = json.loads((RESULTS / f"{program}.json").read_text(encoding="utf-8"))
    return {row["name"]: row for row in document["rows"]}


def beside_a_table() -> str:
    """The sentence about a queue in a table."""
    rows = measured("results")
    hundred, single = (number(rows[name]["ratio_spread"]["median"]) for name in ("receive-100", "receive-1"))
    insert = number(rows["send-one"]["ratio_spread"]["median"])
    return (
        f"Beside a `SKIP LOCKED` table on the same server, receive and ack in batches of 100 are {hundred}"
        f" times as fast, single messages {single} times; a single send is {insert} times as fast as a"
        " one-row INSERT."
    )


def sizes() -> str:
    """The table for sizing."""
    rows, disk, horizon = measured("results"), measured("ten_minutes_table"), measured("horizon")
    figures = {
        "`send_many` of 1 000, one process": rows["send-many"],
        "`send`, one process": rows["send-one"],
        "receive and ack in batches of 1 000, one consumer": rows["receive-1000"],
        "receive and ack in batches of 100, one consumer": rows["receive-100"],
        "receive and ack of single messages, one consumer": rows["receive-1"],
        "a waiting message with a body of 100 bytes, on disk, indexes included": disk["disk"],
        "memory of a wheel with 10 000 000 messages waiting": rows["wheel-memory"],
        "memory of a session of Postgres after every kind of call": horizon["memory-60 days"],
    }
    lines = ["| what | measured |", "|---|---|"]
    lines += [f"| {what} | {number(median(row['ours']))} {row['unit']} |" for what, row in figures.items()]
    return "\n".join(lines) + "\n"


def test_the_figures_for_sizing_are_what_was_measured() -> None:
    page = OPERATE.read_text(encoding="utf-8")
    assert sizes() in page
    whole = median(measured("ten_minutes_table")["disk"]["ours"])
    assert f"about {round(whole - BODY_BYTES, -1):.0f} bytes more with" in page
    results = (RESULTS / "results.json").read_text(encoding="utf-8")
    idle = max(map(float, re.findall(r"ours: [^;]*; the idle consumer used ([\d.]+)%", results)))
    assert f"A consumer that waits uses at most {idle}% of one processor." in page


def year() -> str:
    """The table of a year, month by month."""
    rows = measured("year")
    kinds = ("messages", "ticks", "leases", "recalls", "rest")

    def figure(name: str, month: int) -> str:
        row = rows[f"{name}-{month}"]
        return f"{number(median(row['ours']))} {row['unit']}".strip()

    head = (
        "month | messages there | their tables | ticks | leases | recalls | rest | dead rows | longest step"
    )
    lines = [f"| {head} |", "|---" * 9 + "|"]
    for month in range(1, 13):
        cells = [figure("live", month), *(figure(kind, month) for kind in kinds)]
        cells += [figure("dead", month), figure("step", month)]
        lines.append(f"| {month} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def test_the_table_of_a_year_is_what_was_measured() -> None:
    page = OPERATE.read_text(encoding="utf-8")
    assert year() in page
    assert f"wrote {number(median(measured('year')['wal']['ours']))} bytes of WAL" in " ".join(page.split())


def figure(program: str, name: str) -> str:
    """A reading, as pages write it."""
    return number(median(measured(program)[name]["ours"]))


def catching_up() -> tuple[str, str]:
    """The sentences about upkeep that catches up: with a million rows of logs, and with a hundred million."""
    names = ("longest", "processor", "forgotten", "maintained")
    few = {name: figure("catching_up", name) for name in names}
    many = {name: figure("catching_up", f"{name}-of-100-million") for name in names}
    rates = measured("catching_up")
    large = rates["rate-of-100-million"]
    share, large_share = (number(row["ratio_spread"]["median"]) for row in (rates["rate"], large))
    few_told = (
        f"sends and receives of single messages went on at {share} of their speed. The longest step took"
        f" {few['longest']} ms. At this pace {few['forgotten']} rows of logs a second were forgotten,"
        f" and {few['maintained']} without pauses."
    )
    many_told = (
        f"(load {number(large['load_average'])}), they went on at {large_share} of their speed. The longest"
        f" step took {many['longest']} ms, and none used more than {many['processor']} ms of a processor."
        f" {many['forgotten']} rows a second were forgotten, and {many['maintained']} without pauses."
    )
    return few_told, many_told


def idle() -> str:
    """The sentences about a wheel with nothing to do."""
    wheel, server, questions = (
        figure("operating", f"idle-{name}") for name in ("wheel", "server", "questions")
    )
    wal = number(1000 * median(measured("operating")["idle-wal"]["ours"]))
    return (
        f"An idle wheel with 1 000 topics used {wheel}% of one processor, the server {server}% for it. It"
        f" asked {questions} short questions a second, and {wal} bytes of WAL were written a second."
    )


def test_the_figures_of_upkeep_and_of_an_idle_wheel_are_what_was_measured() -> None:
    page = " ".join(OPERATE.read_text(encoding="utf-8").split())
    for sentence in catching_up():
        assert sentence in page
    assert idle() in page


def test_the_times_of_an_upgrade_are_what_was_measured() -> None:
    page = (ROOT / "docs" / "how-to" / "upgrade.md").read_text(encoding="utf-8")
    for step, name in (
        ("the first upgrade: tables, functions, roles", "first"),
        ("nothing is new", "nothing"),
        ("new functions and rights", "functions"),
    ):
        assert f"| {step} | {figure('operating', f'upgrade-{name}')} s |" in page


def test_another_page_says_the_same_bytes_and_rate() -> None:
    page = (ROOT / "docs" / "how-to" / "spark-brokers.md").read_text(encoding="utf-8")
    stored = median(measured("ten_minutes_table")["disk"]["ours"])
    microseconds = 1e6 / median(measured("results")["send-many"]["ours"])
    assert f"| stored on disk, indexes included | {number(stored)} |" in page
    assert f"| `send_many` of 1 000, one sender | {microseconds:.0f} |" in page


def test_the_figures_of_the_readme_are_what_was_measured() -> None:
    page = " ".join(README.read_text(encoding="utf-8").split())
    assert in_airflow() in page
    assert beside_a_table() in page


def test_the_figures_are_what_was_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert table() in page
    assert of_many() in " ".join(page.split())


def spans() -> str:
    """The table of what begins at a due instant."""
    due, stays = measured("due_to_task"), measured("staying")
    notes = (RESULTS / "ten_minutes_table.md").read_text(encoding="utf-8")
    lone, many = (
        re.findall(
            rf"^- due instant to handler start, p\d\d, {what}, default settings: p50 ([\d.]+) ms", notes, re.M
        )[0]
        for what in ("a lone message on an idle topic", "200/s")
    )
    ring, task, run = (
        number(median(row["ours"]))
        for row in (due["due-to-task-ring-p50"], stays["staying-task-p50"], due["due-to-task-p50"])
    )
    lines = [
        f"| the ring that starts a DAG's run | {ring} ms |",
        f"| the first line of a program that waits, for a lone message | {lone} ms |",
        f"| the first line of a program that waits, with 200 messages a second | {many} ms |",
        f"| the first line of a task that lingers | {task} ms |",
        f"| the first line of a task that a DAG run starts | {run} ms |",
    ]
    return "\n".join(lines)


def test_the_three_spans_are_what_was_measured() -> None:
    page = MEASURING.read_text(encoding="utf-8")
    assert spans() in re.sub(r" \| \[.*\) \|$", " |", page, flags=re.MULTILINE)
    text = " ".join(page.split())
    plain = median(measured("due_to_task")["due-to-task-p50"]["baseline"])
    assert f"a trigger that fires at once needs {number(plain)} ms for a plain task" in text
    topics = measured("many_topics")["topics-lateness"]
    busy, few = (number(median(topics[side])) for side in ("ours", "baseline"))
    assert f"released with a p99 of {busy} ms, where 10 topics have {few} ms" in text


def test_the_two_ratios_of_single_messages_are_what_was_measured() -> None:
    text = " ".join(MEASURING.read_text(encoding="utf-8").split())
    main, older = measured("results"), measured("ten_minutes_table")
    rows = (main["receive-1"], older["receive-1"], older["send-1"])
    single, again, sent = (number(row["ratio_spread"]["median"]) for row in rows)
    assert f"receive and ack are {single} times as fast" in text
    assert f"there they are {again} times as fast" in text
    assert f"a single send {sent} times" in text


def test_the_granularities_are_those_of_the_benchmarks() -> None:
    text = " ".join(MEASURING.read_text(encoding="utf-8").split())
    rates = inspect.signature(ours.create_topic).parameters["granularity"].default
    spans = [one / timedelta(milliseconds=1) for one in (latency.GRANULARITY, rates)]
    assert (
        "is {:g} ms in the rows of the main table that begin at a due instant, {:g} ms".format(*spans) in text
    )


def test_the_loads_are_those_of_the_results() -> None:
    """A figure that was taken beside other work says so."""
    text = " ".join(MEASURING.read_text(encoding="utf-8").split())
    load = "2.8"
    table = (RESULTS / "waiting_in_airflow.md").read_text(encoding="utf-8")
    loads = re.findall(r"^\| 1 000 .* \| ([\d.]+) \| [\d.]+ ms \|$", table, re.MULTILINE)
    assert set(loads) == {load}
    assert f"a load of {load}" in text


def memory_of_spark() -> str:
    """The sentence about how memory grows with the number of messages."""
    rows = measured("spark_memory")
    peaks = {name: max(row["ours"]) for name, row in rows.items()}
    few, many = "1000000", "10000000"
    grows = {
        part: max(peaks[f"{job}-{part}-{many}"] / peaks[f"{job}-{part}-{few}"] for job in JOBS)
        for part in ("driver", "workers")
    }
    return (
        f"Ten million take at most {grows['driver']:.2f} times as much memory of the driver as one million, "
        f"and at most {grows['workers']:.2f} times as much of the workers"
    )


def test_the_memory_of_spark_is_what_was_measured() -> None:
    assert memory_of_spark() in " ".join(MEASURING.read_text(encoding="utf-8").split())
