"""`springtide plan`: shows what a policy would decide about a job now, with candidates and reasons. The command changes
nothing.

In: the view that a run's planner wrote (`view.json`), a file with the same fields, or the spec of a job.
"""

import math
import pathlib
import re
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich import box as rich_box
from rich import console, table

from springtide.cli.common.options import RUNS, Json, Runs, verb
from springtide.cli.common.render import WIDTH, print_json, wrap
from springtide.domain.core.shape import Shape
from springtide.domain.plan.plan import Decision
from springtide.launch import job_lookup
from springtide.launch.spec import field_overrides
from springtide.planning.perf_model.equations import TERMS
from springtide.planning.perf_model.fit import FittedModel
from springtide.planning.policy import explain, registry
from springtide.planning.policy.explain import JobOutlook, ShapeOption
from springtide.telemetry import planner_views

FILES = (".yaml", ".yml", ".json")
MEANING = {
    "grad": "worker cores x s a sample",
    "upd": "server cores x s a step",
    "sync": "times across the net",
    "emb": "server s a float",
    "beta": "s that stay",
}


@verb(
    "springtide plan train                    plan of a job, running or past",
    "springtide plan examples/plan_job.yaml --policy static",
)
def plan(
    source: Annotated[
        str | None, typer.Argument(help="Job or file.  [default: the newest job]", metavar="JOB_OR_FILE")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy to ask.  [default: the job's own]", metavar="NAME")] = None,
    folder: Runs = RUNS,
    as_json: Json = False,
) -> int:
    """Show what a policy would decide about a job now: the model, the candidates, the choice and the reason.

    Changes nothing. For a run, the policy gets the planner's last view; a file has the same fields.
    """
    path = found(source, folder)
    if is_spec(path):
        from springtide.cli.job import submit
        from springtide.launch.job_lookup import JobLocation
        from springtide.launch.spec import spec_reader

        return submit.rehearse(spec_reader.read(path), JobLocation(folder=folder), named=False, as_json=as_json)
    shown = planner_views.read(path)
    config = shown.config if policy is None else replace(shown.config, policy=policy)
    field_overrides.check_names(config)
    decision = registry.load(config.policy)(shown.view, config)
    seen = explain.outlooks(shown.view, config, decision)
    if as_json:
        print_json(as_object(path, config.policy, decision, seen), as_json)
        return 0
    screen = console.Console(width=WIDTH, highlight=False, emoji=False)
    screen.print(f"policy {config.policy}, {path}", style="bold", soft_wrap=True)
    for outlook in seen:
        show(screen, outlook)
    print("\n".join(wrap(f"decision: {decision.why}")))
    for note in (line for line in decision.notes if line != decision.why):
        print("\n".join(wrap(f"note    {note}")))
    return 0


def found(source: str | None, folder: str) -> pathlib.Path:
    if source is not None and (source.endswith(FILES) or pathlib.Path(source).is_file()):
        return pathlib.Path(source)
    run = job_lookup.pick_local(source, folder)
    return planner_views.path_of(run.files)


def is_spec(path: pathlib.Path) -> bool:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        return False  # the function that reads the file reports the error
    return bool(re.search(r"^(kind: *ElasticJob|script:|  script:)", text, flags=re.M)) and "\njobs:" not in f"\n{text}"


def show(screen: console.Console, outlook: JobOutlook) -> None:
    speed = f", {outlook.measured:,.0f} samples/s measured" if outlook.measured else ""
    screen.print(f"\njob {outlook.job}{speed}", style="bold")
    print("\n".join(wrap(f"model   {outlook.model if isinstance(outlook.model, str) else outlook.model.why}")))
    if isinstance(outlook.model, FittedModel):
        screen.print(coefficients(outlook.model, outlook.shares))
    print("\n".join(wrap(f"shapes  {outlook.why}")))
    if outlook.options:
        screen.print(candidates(outlook.options))
    if outlook.plan is None:
        print("plan no change")
    else:
        gain = f"; {outlook.plan.throughput:,.0f} samples/s are expected" if outlook.plan.throughput else ""
        print("\n".join(wrap(f"plan    {outlook.plan.shape}{gain}")))
        print("\n".join(wrap(f"why     {outlook.plan.reason}")))


def coefficients(model: FittedModel, shares: tuple[float, ...] | None) -> table.Table:
    shown = table.Table(box=rich_box.SIMPLE, padding=(0, 1))
    for column in ("", "value", "what", "of a step", "off by"):
        shown.add_column(column, justify="left" if column in {"", "what"} else "right")
    for place, name in enumerate(TERMS):
        off = model.uncertainty[name]
        known = "unknown" if math.isinf(off) else f"{off:.1%}"
        part = "-" if shares is None else f"{shares[place]:.1%}"
        value = f"{getattr(model.coefficients, name):.3g}"
        shown.add_row(name, value, MEANING[name], part, known + (" *" if name in model.unclear else ""))
    return shown


def candidates(options: tuple[ShapeOption, ...]) -> table.Table:
    shown = table.Table(box=rich_box.SIMPLE, padding=(0, 1))
    for column in ("", "workers", "servers", "cores", "cost/h", "samples/s", ""):
        shown.add_column(column, justify="right" if column in {"cores", "cost/h", "samples/s"} else "left")
    for option in options:
        speed = "-" if option.throughput is None else f"{option.throughput:,.0f}"
        remark = ", ".join(["now"] * option.now + ["chosen"] * option.chosen)
        shown.add_row(
            "->" if option.chosen else "",
            *sides(option.shape),
            f"{option.shape.cpu:.3g}",
            f"{option.cost:.3g}",
            speed,
            remark,
            style="bold" if option.chosen else "",
        )
    return shown


def sides(shape: Shape) -> tuple[str, str]:
    gpus = f" + {shape.gpus} GPU" if shape.gpus else ""
    return f"{shape.workers} x {shape.worker_cpu:.3g}{gpus}", f"{shape.servers} x {shape.server_cpu:.3g}"


def as_object(path: pathlib.Path, policy: str, decision: Decision, seen: tuple[JobOutlook, ...]) -> dict[str, Any]:
    return {
        "source": str(path),
        "policy": policy,
        "why": decision.why,
        "notes": decision.notes,
        "jobs": [
            {
                "job": outlook.job,
                "measured": outlook.measured,
                "model": model(outlook.model),
                "candidates": outlook.options,
                "plan": outlook.plan,
            }
            for outlook in seen
        ],
    }


def model(found: FittedModel | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"why": found, "fitted": False}
    return {
        "fitted": True,
        "why": found.why,
        "coefficients": found.coefficients,
        "rmsle": found.rmsle,
        "mape": found.mape,
        "unclear": found.unclear,
        "configurations": len(found.table),
        "uncertainty": {name: off if math.isfinite(off) else None for name, off in found.uncertainty.items()},
    }
