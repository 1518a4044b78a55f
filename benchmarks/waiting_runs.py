"""What runs that wait for an answer cost a triggerer and the server, with 10, 100 and 1 000 of them.

The process runs Airflow's shared streams and the triggers, and nothing else of a triggerer. It turns the
wheel, too, and no message is due. So the idle wheel and the polls for answers make
all transactions. No other program uses the server.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import psutil

from benchmarks import ours
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row, thousands
from benchmarks.processes import Desk, crew
from benchmarks.program import main
from benchmarks.server import connect, settle
from duewheel.store import Broker

COUNTS = (10, 100, 1_000)
#: Until each wait has been looked up, and the wheel has done its first round of upkeep.
WARM_SECONDS = 15.0
MEBIBYTE = 1024 * 1024
TRANSACTIONS = "SELECT d.xact_commit FROM pg_stat_database d WHERE d.datname = current_database()"


def run_triggers(desk: Desk, dsn: str, message_ids: list[str]) -> None:
    """Wait for answers to these messages until the stop."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["AIRFLOW_HOME"] = home
        os.environ["AIRFLOW_CONN_DUEWHEEL_DEFAULT"] = dsn.replace("postgresql:", "duewheel:", 1)
        asyncio.run(_run_triggers(desk, message_ids))


async def _run_triggers(desk: Desk, message_ids: list[str]) -> None:
    # Imported here: Airflow reads its home when it is imported.
    from airflow.triggers.shared_stream import SharedStreamManager

    from duewheel.triggers.answer import AnswerTrigger

    streams = SharedStreamManager()

    async def run(number: int, trigger: AnswerTrigger) -> None:
        stream = streams.subscribe(trigger_id=number, trigger=trigger, key=trigger.shared_stream_key())
        async for event in trigger.filter_shared_stream(stream):
            raise RuntimeError(f"a run did not wait: {event}")

    running = [
        asyncio.create_task(run(number, AnswerTrigger(message_id, ours.TOPIC)))
        for number, message_id in enumerate(message_ids)
    ]
    desk.ready.release()
    while not desk.stop.is_set():
        done, _ = await asyncio.wait(running, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _measure(bench: Bench, count: int) -> tuple[float, float, float, float]:
    """Memory in MB; of one second: transactions, and milliseconds of processor of the process and the
    server."""
    measured_seconds = bench.size(60, 20)
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        with Broker(dsn) as broker:
            waits = [
                broker.begin_wait(ours.TOPIC, f"run-{n}", timedelta(hours=2)).message_id for n in range(count)
            ]
        settle(dsn)
        with (
            crew(1, run_triggers, dsn, waits) as triggerer,
            closing(connect(dsn)) as connection,
            connection.cursor() as cursor,
        ):
            triggerer.wait_until_ready()
            # Nothing tells that the first lookups are done: see WARM_SECONDS.
            time.sleep(WARM_SECONDS)
            process = psutil.Process(triggerer.workers[0].pid)

            def read() -> tuple[float, ...]:
                cursor.execute(TRANSACTIONS)
                ((transactions,),) = cursor.fetchall()
                return transactions, 1000 * sum(process.cpu_times()[:2]), 1000 * bench.server.cpu_seconds()

            before = read()
            # The span that is measured.
            time.sleep(measured_seconds)
            transactions, own, server = (
                (there - here) / measured_seconds for here, there in zip(before, read(), strict=True)
            )
            return process.memory_full_info().uss / MEBIBYTE, transactions, own, server


def waiting_runs(bench: Bench) -> Iterator[Row]:
    """Memory, transactions and time of the processor."""
    for count in COUNTS:
        readings = [_measure(bench, count) for _ in range(bench.pairs)]
        about = f"{thousands(count)} runs that wait"
        for place, (name, what, unit) in enumerate(
            (
                ("memory", "private memory of the process", "MB"),
                ("transactions", "transactions", "/s"),
                ("process", "the process's time of the processor in a second", "ms"),
                ("server", "the server's time of the processor in a second", "ms"),
            )
        ):
            yield Row(f"{name}-{count}", f"{about}: {what}", unit, [each[place] for each in readings])


SUBJECTS = [Subject("waiting-runs", "runs that wait for an answer", waiting_runs)]

if __name__ == "__main__":
    main("waiting_runs", __doc__, SUBJECTS)
