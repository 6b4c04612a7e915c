"""`springtide logs`: what the processes of a job have printed, and with -f whatever they print from now on.

In: a job's name and perhaps a role's. Out: the last lines of each role under a heading; followed, each line with its
role before it, until the job is over or Ctrl-C, which ends the command and not the job.
"""

import itertools

import msgspec

from springtide import errors
from springtide.launch import job_lookup
from springtide.launch.job_lookup import JobLocation
from springtide.platforms.agent.job_handle import JobHandle


def logs(name: str | None, role: str | None, where: JobLocation, *, lines: int, follow: bool, as_json: bool) -> int:
    reach = job_lookup.find(name, where)
    known = reach.roles()
    if role is not None and role not in known:
        raise errors.UnknownName(f"role of job {reach.name}", role, known)
    chosen = [role] if role is not None else []
    return followed(reach, chosen, lines, as_json=as_json) if follow else tails(reach, chosen, lines, as_json=as_json)


def tails(reach: JobHandle, chosen: list[str], lines: int, *, as_json: bool) -> int:
    found: dict[str, list[str]] = {each: [] for each in (chosen or reach.roles())}
    for each, some in itertools.groupby(reach.logs(chosen, lines=lines, follow=False), key=lambda line: line.role):
        found.setdefault(each, []).extend(line.text for line in some)
    for each, said in found.items():
        print(f"==> {each} <==")
        print("\n".join(said) if said else "(empty)")
    if as_json:
        print(msgspec.json.encode({"job": reach.name, "logs": found}).decode())
    return 0


def followed(reach: JobHandle, chosen: list[str], lines: int, *, as_json: bool) -> int:
    count = 0
    try:
        for line in reach.logs(chosen, lines=lines, follow=True):
            count += 1
            print(line.text if chosen else f"{line.role:<13} | {line.text}", flush=True)
    except KeyboardInterrupt:
        print(f"\njob {reach.name} goes on; `springtide stop {reach.name}` ends it")
    if as_json:
        print(msgspec.json.encode({"job": reach.name, "lines": count}).decode())
    return 0
