"""`springtide logs`: the last lines of what the processes of a job have printed.

In: a job's name and perhaps a role's. Out: lines as they are in the log files, under a heading for each role.
"""

import msgspec

from springtide import errors
from springtide.cli import jobs
from springtide.telemetry import logs as log_files


def logs(name: str | None, role: str | None, *, lines: int, folder: str, as_json: bool) -> int:
    """Print the tail of one role's log, or of all."""
    run = jobs.pick(name, folder)
    paths = {path.stem: path for path in sorted(run.files.logs.glob("*.log"))}
    if role is not None and role not in paths:
        raise errors.UnknownName(f"role of job {run.job}", role, paths)
    chosen = {role: paths[role]} if role is not None else paths
    tails = {each: log_files.tail(path, lines) for each, path in chosen.items()}
    for each, said in tails.items():
        print(f"==> {paths[each]} <==")
        print("\n".join(said) if said else "(empty)")
    if as_json:
        print(msgspec.json.encode({"job": run.job, "logs": tails}).decode())
    return 0
