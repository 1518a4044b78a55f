"""The process that supervises an embedded Postgres: it is the server's parent, and ends it.

``duewheel.embedded.postgres`` runs it as a script, with the standard library alone, in a separate session, so
that Ctrl-C in the user's terminal is for the user's program. It lives exactly as long as its server. So
does its lock on the file ``supervisor.lock``, which it inherits open and locked.

Each user of the server holds a shared lock on one file. The supervisor waits for the exclusive lock. It gets
it when the last user is gone, even a killed user, because the kernel frees the locks of a dead process. The
supervisor then shuts the server down. So an unused server never stays, and users need not report that they
are alive.

Arguments: descriptor of the users' lock, path of the log, user id and group id to run the server as (-1: as
they are), and the server's command line. The server's environment is this process's.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading

#: Seconds given to an orderly shutdown (clients are disconnected, a checkpoint is written) ...
ORDERLY_SECONDS = 120.0
#: ... and after that to an immediate one, which the next start has to recover from.
IMMEDIATE_SECONDS = 10.0


def shut_down(server: subprocess.Popen[bytes]) -> None:
    """End the server: orderly, else at once, else by force. Returns when it is gone."""
    for number, seconds in ((signal.SIGINT, ORDERLY_SECONDS), (signal.SIGQUIT, IMMEDIATE_SECONDS)):
        server.send_signal(number)
        try:
            server.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
        return
    server.kill()
    server.wait()


def main(arguments: list[str]) -> int:
    users_lock, log_path, user, group = int(arguments[0]), arguments[1], int(arguments[2]), int(arguments[3])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)

    nothing = os.open(os.devnull, os.O_RDWR)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)

    server = subprocess.Popen(
        arguments[4:],
        user=user if user >= 0 else None,
        group=group if group >= 0 else None,
        extra_groups=[] if user >= 0 else None,
    )

    def end_when_unused() -> None:
        fcntl.flock(users_lock, fcntl.LOCK_EX)
        shut_down(server)

    def end_when_asked(_number: int, _frame: object) -> None:
        threading.Thread(target=shut_down, args=(server,), daemon=True).start()

    signal.signal(signal.SIGTERM, end_when_asked)
    threading.Thread(target=end_when_unused, daemon=True).start()
    return server.wait()


if __name__ == "__main__":
    # No interpreter shutdown: a thread may still be waiting for the lock.
    os._exit(main(sys.argv[1:]) & 0xFF)
