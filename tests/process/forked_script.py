"""Runs a Python file in a fork of the session's interpreter with torch: a cold one takes seconds of a core to start."""

import os
import runpy
import sys

from springtide.testing.cluster import LocalCluster


def run(file, *, folder, environment):
    """Run a file as `python FILE` does in a folder. Return its exit code, standard output and standard error."""
    log, errors = folder / f"{file.stem}.out", folder / f"{file.stem}.err"
    with open(log, "wb") as out:
        arguments = [str(folder), str(file), str(errors)]
        script = LocalCluster.warm.start(__name__, arguments, environment, out.fileno(), process_group=os.getpgrp())
    code = script.wait()
    return code, log.read_text(), errors.read_text()


def main():
    folder, file, errors = sys.argv[1:]
    with open(errors, "wb") as log:
        os.dup2(log.fileno(), 2)
    os.chdir(folder)
    sys.path.insert(0, os.path.dirname(file))
    sys.argv = [file]
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main()
