"""Ends all processes of a job when its agent ends, even by SIGKILL. Runs as a script, `python -I -S watchdog.py`.

In: standard input, a pipe whose other end only the agent holds. It leads the process group that all roles are started
in; when the pipe closes it kills the group, itself included, so nothing can be left behind, children of roles neither.
"""

import os
import signal
import sys


def main() -> None:
    """Wait for the agent's end of the pipe to close, then end everyone."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    if os.getpgrp() == os.getpid():  # never a group that is not its own
        os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
