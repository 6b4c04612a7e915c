"""Ends all processes of a job when its agent ends, even by SIGKILL. Runs as `python -I -S watchdog.py GROUP`.

Standard input is a pipe whose other end only the agent holds; the agent writes the control groups to remove to it. All
roles start in the watchdog's process group, which it kills when the pipe closes. GROUP 0: a new group that it leads.
"""

import os
import signal
import sys
import time

REMOVE_S = 5.0  # seconds to retry: a group can be removed once its last process has died


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    folders = [folder for folder in sys.stdin.read().splitlines() if os.path.isdir(folder)]
    if os.getpgrp() == (int(sys.argv[1]) or os.getpid()):  # never kill a group that is not the job's
        if folders:
            remove_afterwards(folders)
        os.killpg(os.getpgrp(), signal.SIGKILL)


def remove_afterwards(folders: list[str]) -> None:
    """Leave a child that removes the control groups after this process is dead."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.setpgid(child, child)
        return
    for handle in (0, 1, 2, theirs):
        os.close(handle)
    os.read(ours, 1)  # returns when the watchdog is dead, which closes the other end
    deadline = time.monotonic() + REMOVE_S
    while folders and time.monotonic() < deadline:
        folders = [folder for folder in reversed(folders) if not removed(folder)][::-1]
        time.sleep(0.01)
    os._exit(0)


def removed(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
