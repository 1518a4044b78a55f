"""Program: run modules that use Airflow, each in a fork of this process, which has imported Airflow once.

python -m tests.airflow_runner

Standard input is a socket. Each request on it is a JSON document ``{"program": ..., "arguments": ...,
"environment": ...}``, together with two files: one for the output of the module, one for its exit status.
The answer is the process id of the fork. The process ends when the socket is closed.

A fork has a metadata database, settings and modules of its own, and can be killed. What it does not do again
is the import of Airflow and the making of its execution API, which take most of the time of a short run.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from http import HTTPStatus
from importlib import import_module
from typing import Any

#: What ``duewheel.testing.run_dag`` and Airflow import when a run needs it.
RUN_IMPORTS = (
    "a2wsgi",
    "airflow.dag_processing.bundles.manager",
    "airflow.dag_processing.collection",
    "airflow.dag_processing.dagbag",
    "airflow.models.xcom",
    "airflow.providers.standard.decorators.python",
    "airflow.sdk.serde",
)


def main() -> None:
    """Serve requests until the socket is closed."""
    with socket.socket(fileno=os.dup(0)) as requests:
        prepare()
        # So a fork that has ended leaves nothing to wait for.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            request, files, _, _ = socket.recv_fds(requests, 1 << 20, 2)
            if not request:
                return
            if (pid := os.fork()) == 0:
                requests.close()
                run(json.loads(request), *files)
            for file in files:
                os.close(file)
            requests.send(str(pid).encode())


def prepare() -> None:
    """Import what runs need, and make the execution API ready for requests, without its threads."""
    import httpx
    from airflow.sdk.execution_time.supervisor import in_process_api_server
    from sqlalchemy.orm import configure_mappers

    import duewheel.operators.consume
    import duewheel.operators.decorators
    import duewheel.operators.send
    import duewheel.sensors.due_messages
    import duewheel.store.broker
    import duewheel.triggers.wheel_stream  # noqa: F401

    for name in RUN_IMPORTS:
        import_module(name)
    configure_mappers()

    async def ask() -> None:
        # It makes the routes of all its versions when it is first asked, for anything.
        transport = in_process_api_server().atransport
        async with httpx.AsyncClient(transport=transport, base_url="http://in-process") as client:
            assert (await client.get("/nothing")).status_code == HTTPStatus.NOT_FOUND

    asyncio.run(ask())


def run(request: dict[str, Any], output: int, status: int) -> None:
    """Become the process of one run, and end with it."""
    ended = 1
    try:
        become(request["environment"], output)
        sys.argv = [request["program"], *request["arguments"]]
        runpy.run_module(request["program"], run_name="__main__")
        ended = 0
    except SystemExit as said:
        if isinstance(said.code, str):
            sys.stderr.write(f"{said.code}\n")
        else:
            ended = said.code or 0
    except BaseException:  # noqa: BLE001 -- as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(status, str(ended).encode())
        # The end of the interpreter would take as long as the run.
        os._exit(ended)


def become(environment: dict[str, str], output: int) -> None:
    """Take over the environment, the output and the metadata database of a run."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(output, stream.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    further = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path += [folder for folder in further if folder and folder not in sys.path]
    database = f"sqlite:///{environment['AIRFLOW_HOME']}/airflow.db"
    os.environ.setdefault("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", database)

    from airflow import settings

    settings.configure_vars()
    settings.reconfigure_orm()


if __name__ == "__main__":
    main()
