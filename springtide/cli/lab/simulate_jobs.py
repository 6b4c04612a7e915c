"""`springtide simulate --detailed`: some jobs with their real masters, ledgers, slots, checkpoints, in virtual time.

In: a trace file or a seed. Out: a table, JSON; status 1 where a sample was lost or repeated, or a job did not finish.
"""

import pathlib
import tempfile
import time
from collections.abc import Sequence

import msgspec
from rich import box
from rich import console as rich_console
from rich import table as rich_table

from springtide import errors
from springtide.cli.lab.simulate import progress, system
from springtide.domain.spec.job_spec import JobPhase
from springtide.sim.jobs import fleet, virtual_loop
from springtide.sim.jobs.fleet import Fleet
from springtide.sim.jobs.job import VirtualOutcome
from springtide.sim.report.report import WIDTH
from springtide.sim.world import trace, workload
from springtide.sim.world.parameters import ClusterWorld

JOBS, POLICY = 5, "springtide"


def simulate(
    path: str | None, *, names: Sequence[str], jobs: int | None, seed: int, plot: str | None, as_json: bool
) -> int:
    if len(names) > 1:
        raise errors.BadInput(f"--detailed runs one policy at a time, got {', '.join(names)}; leave all but one out")
    if plot is not None:
        raise errors.BadInput(f"--detailed has no plot: leave --plot {plot} out, or --detailed")
    if path is not None:
        read = trace.read(pathlib.Path(path))
        world, work, what = read.world, read.jobs, f"{len(read.jobs)} jobs of {path}"
    else:
        world = ClusterWorld()
        work, what = workload.jobs(world, jobs or JOBS, seed), f"{jobs or JOBS} jobs drawn from seed {seed}"
    chosen = system(names[0] if names else POLICY, work)
    began = time.process_time()
    with progress(chosen.name, len(work)) as watch, tempfile.TemporaryDirectory(prefix="springtide-sim-") as folder:

        async def run() -> Fleet:
            return await fleet.FleetRun(world, work, chosen, pathlib.Path(folder), watch=watch).run()

        found = virtual_loop.run(run())
    seconds = time.process_time() - began
    show(found, title=f"simulated in detail: {what}, policy {chosen.name}")
    if as_json:
        print(msgspec.json.encode(facts(found, seconds=seconds, policy=chosen.name, seed=seed, path=path)).decode())
    return 0 if all(one.right for one in found.outcomes) else 1


def show(found: Fleet, *, title: str) -> None:
    screen = rich_console.Console(width=WIDTH, highlight=False, emoji=False)
    screen.print(title, style="bold")
    shown = rich_table.Table(box=box.SIMPLE)
    heads = ("job", "ended", "hours", "restarts", "returns", "moves", "lost", "again")
    for head in heads:
        shown.add_column(head, justify="left" if head in ("job", "ended") else "right")
    for one in found.outcomes:
        shown.add_row(
            one.name,
            str(one.phase),
            f"{one.jct_s / 3600:.2f}",
            str(one.relaunches),
            str(one.eras),
            str(one.moved),
            str(one.counts.lost),
            str(one.counts.repeated),
        )
    screen.print(shown)
    happened = ", ".join(f"{kind} {times} times" for kind, times in sorted(found.happened.items())) or "nothing"
    screen.print(
        f"{found.hours:.1f} hours of jobs; {found.decisions} decisions; plans: "
        + (", ".join(f"{count} {what}" for what, count in sorted(found.plans.items())) or "none")
    )
    screen.print(f"went wrong: {happened}")
    for one in found.outcomes:
        if not one.right:
            screen.print(f"{one.name} is not right: {trouble(one)}")


def trouble(one: VirtualOutcome) -> str:
    if one.phase is not JobPhase.FINISHED:
        return f"{one.phase}: {one.why}"
    if not one.counts.right:
        return one.counts.first
    return f"its ledger has {one.samples} of {one.wanted} samples"


def facts(found: Fleet, *, seconds: float, policy: str, seed: int, path: str | None) -> dict[str, object]:
    return {
        "policy": policy,
        "seed": None if path else seed,
        "trace": path,
        "seconds": round(seconds, 3),
        "hours": found.hours,
        "decisions": found.decisions,
        "plans": dict(found.plans),
        "happened": dict(found.happened),
        "right": all(one.right for one in found.outcomes),
        "jobs": [
            {
                "name": one.name,
                "phase": str(one.phase),
                "why": one.why,
                "jct_s": one.jct_s,
                "samples": one.samples,
                "lost": one.counts.lost,
                "repeated": one.counts.repeated,
                "relaunches": one.relaunches,
                "ledger_back": one.eras,
                "masters": one.terms,
                "slots_moved": one.moved,
                "events": dict(one.told),
            }
            for one in found.outcomes
        ],
    }
