"""The fork server of a test session. Its forks end without unloading torch, which takes a third of a core-second."""

import atexit
import os
import pathlib
import subprocess
import sys
import threading

from springtide import fork_server
from springtide.platforms.local import fork_server as client

ROOT = pathlib.Path(__file__).resolve().parents[2]


def start_server(asked, environment):
    """Stand in for `start_server` of the client."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getpid()), *client.IMPORTS],
        stdin=asked.fileno(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd=ROOT,
        process_group=0,
    )


def main():
    code = 0
    try:
        fork_server.main(int(sys.argv[1]), sys.argv[2:])
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
