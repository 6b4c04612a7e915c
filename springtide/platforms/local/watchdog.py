"""Ends all processes of a job when its agent ends, even by SIGKILL. Runs as `python -I -S watchdog.py GROUP`.

Standard input is a pipe whose other end only the agent holds. All roles start in the watchdog's process group. When
the pipe closes, the watchdog kills this group. GROUP 0 means a new group that the watchdog leads.
"""

import os
import signal
import sys


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    if os.getpgrp() == (int(sys.argv[1]) or os.getpid()):  # never kill a group that is not the job's
        os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
