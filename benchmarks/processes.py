"""Workers in separate processes, started together and stopped by a common signal.

Each worker is a function that gets a `Desk`. Through it the worker reports that it is ready, waits for the
start, adds to the common count of messages, sees when the work has ended, and hands in its readings.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event, Semaphore
from queue import Empty
from typing import Any

_SPAWN = multiprocessing.get_context("spawn")
READY_SECONDS = 60.0


@dataclass
class Desk:
    """The state that a group of workers shares with the process that started them."""

    ready: Semaphore
    start: Event
    stop: Event
    done: Synchronized[int]
    results: Queue[Any]

    def begin(self) -> None:
        """Report that this worker is ready, and wait for the start."""
        self.ready.release()
        self.start.wait()

    def count(self, messages: int) -> int:
        """Add to the common count of all workers; returns the sum."""
        with self.done.get_lock():
            self.done.value += messages
            return self.done.value


class Crew:
    """The running workers, as the process that started them sees them."""

    def __init__(self, desk: Desk, workers: list[SpawnProcess]) -> None:
        self.desk = desk
        self.workers = workers

    def wait_until_ready(self) -> None:
        """Return when every worker has reported that it is ready."""
        for _ in self.workers:
            self._wait("ready", READY_SECONDS, lambda seconds: self.desk.ready.acquire(timeout=seconds))

    def go(self) -> float:
        """Start the work; returns the instant of the start as Unix seconds."""
        self.wait_until_ready()
        started = time.time()
        self.desk.start.set()
        return started

    def collect(self, *, timeout_seconds: float) -> list[Any]:
        """One result per worker, in the order of their arrival."""
        results: list[Any] = []

        def take(seconds: float) -> bool:
            try:
                results.append(self.desk.results.get(timeout=seconds))
            except Empty:
                return False
            return True

        for _ in self.workers:
            self._wait("done", timeout_seconds, take)
        return results

    def _wait(self, what: str, seconds: float, step: Callable[[float], bool]) -> None:
        """Wait for one worker in short steps, so that a dead worker is noticed."""
        deadline = time.monotonic() + seconds
        while not step(0.5):
            if any(process.exitcode for process in self.workers):
                raise RuntimeError("a worker died; its error is above")
            if time.monotonic() > deadline:
                raise RuntimeError(f"a worker was not {what} within {seconds:.0f} s")


@contextmanager
def crew(count: int, worker: Callable[..., None], *arguments: object) -> Iterator[Crew]:
    """`count` processes that each run `worker(desk, *arguments)`; stopped and joined at the end."""
    desk = Desk(_SPAWN.Semaphore(0), _SPAWN.Event(), _SPAWN.Event(), _SPAWN.Value("q", 0), _SPAWN.Queue())
    workers = [_SPAWN.Process(target=worker, args=(desk, *arguments), daemon=True) for _ in range(count)]
    for process in workers:
        process.start()
    try:
        yield Crew(desk, workers)
    finally:
        desk.start.set()
        desk.stop.set()
        for process in workers:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join()
