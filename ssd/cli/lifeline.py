"""Lets a child process end with its parent, however the parent ended (kill -9 included)."""

import os
import signal
import threading
import time

STDIN = 0


def end_with_stdin(grace_s: float = 4.0) -> None:
    """Watch standard input on a thread; when it closes, ask this process to stop, and after `grace_s` seconds make it.

    The parent holds the other end of the pipe and never writes: the kernel closes it when the parent is gone. Unlike
    PR_SET_PDEATHSIG this cannot miss a parent that died before the child looked, and works outside Linux.
    """
    threading.Thread(target=_watch, args=(grace_s,), name="lifeline", daemon=True).start()


def _watch(grace_s: float) -> None:
    while os.read(STDIN, 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(1)
