"""`springtide scale`, `stop` and `logs`: change a running job from outside, or read its logs."""

import itertools
import os
import time

from springtide import errors
from springtide.cli.common.render import print_json
from springtide.launch import job_lookup
from springtide.launch.job_lookup import JobLocation
from springtide.platforms.agent.job_handle import JobHandle
from springtide.rpc.messages import messages

POLL_S = 0.2
WORKERS_A_CORE = 8  # a larger number of workers is probably a typing mistake


def scale(name: str | None, counts: dict[str, int | None], where: JobLocation, *, as_json: bool, sure: bool) -> int:
    """Scale the kinds of roles whose count is not None."""
    given = {kind: count for kind, count in counts.items() if count is not None}
    if not given:
        raise errors.BadInput("say how many: --workers N, --servers N, --data-workers N, or several of these")
    reach = job_lookup.find(name, where)
    most = WORKERS_A_CORE * (os.cpu_count() or 1)
    for kind, count in given.items():
        if count > most and not sure and reach.platform == "local":
            raise errors.BadInput(
                f"{count_of(kind, count)}: this machine has {os.cpu_count()} cores, and more than {most} of them would "
                "mostly wait for each other. Nothing was changed; if it is what you want, say --yes"
            )
    reach.ask(messages.ScaleRequest(counts["workers"], counts["servers"], data_workers=counts["data_workers"]))
    text = " and ".join(count_of(kind, count) for kind, count in given.items())
    print(f"job {reach.name}: {text} requested; see `springtide status {reach.name}`")
    print_json({"job": reach.name, **given}, as_json)
    return 0


def count_of(kind: str, count: int) -> str:
    noun = kind.removesuffix("s").replace("_", " ")
    return f"{count} {noun}{'' if count == 1 else 's'}"


def stop(name: str | None, where: JobLocation, *, wait: bool, as_json: bool) -> int:
    reach = job_lookup.find(name, where)
    reach.ask(messages.StopRequest("stopped by `springtide stop`"))
    print(f"job {reach.name}: draining, workers finish the batch in hand")
    while wait and reach.running():
        time.sleep(POLL_S)
    status = reach.status()
    if wait:
        print(f"job {reach.name}: {status.phase}")
    print_json({"job": reach.name, "phase": status.phase}, as_json)
    return 0


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
    print_json({"job": reach.name, "logs": found}, as_json)
    return 0


def followed(reach: JobHandle, chosen: list[str], lines: int, *, as_json: bool) -> int:
    count = 0
    try:
        for line in reach.logs(chosen, lines=lines, follow=True):
            count += 1
            print(line.text if chosen else f"{line.role:<13} | {line.text}", flush=True)
    except KeyboardInterrupt:
        print(f"\njob {reach.name} goes on; `springtide stop {reach.name}` ends it")
    print_json({"job": reach.name, "lines": count}, as_json)
    return 0
