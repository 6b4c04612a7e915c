"""Opens the view of a running job: a panel on a terminal, plain lines in a pipe.

Next: `cli.show.plain_view` or `cli.show.live_panel`.
"""

import sys

from springtide.cli.show.plain_view import PlainView, WorkerOutput
from springtide.domain.core.resources import show_memory
from springtide.platforms.agent.run_plan import RunPlan
from springtide.telemetry.logs import RunFiles


def open_view(plan: RunPlan, files: RunFiles, *, plain: bool = False) -> PlainView:
    spec = plan.spec
    heading = (
        f"job {files.root.name}: {count(spec.servers, 'server')}, {count(spec.workers, 'worker')}, "
        f"{spec.sync}, {count(plan.threads_per_worker, 'thread')} a worker"
    )
    bounds = spec.planning.bounds
    if bounds is not None:
        heading += f", planned within {bounds.quota.cpu:g} cores"
    elif spec.worker_cpu is not None:
        heading += f", cpu {spec.worker_cpu:g} each"
    if spec.feeding.workers:
        heading += f", {count(spec.feeding.workers, 'data worker')}"
    if spec.worker_memory is not None:
        heading += f", memory {show_memory(spec.worker_memory)} each"
    lines, follow = [heading, f"logs {files.logs}"], WorkerOutput(files)
    if plain or not sys.stderr.isatty():
        return PlainView(lines, follow)
    from rich.console import Console  # imported here, because the import takes 50 ms and only a terminal needs it

    from springtide.cli.show.live_panel import LivePanel

    console = Console(stderr=True, highlight=False)  # rich honours NO_COLOR and TERM
    return PlainView(lines, follow) if console.is_dumb_terminal else LivePanel(console, lines, follow)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
