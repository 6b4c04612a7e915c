"""What a job begins with when the user leaves that open, and by which rules it plans from there.

In: the options of `springtide run`. Out: a `Start`: a first shape with `PlanRules`, or what `size_locally` says where
nothing is to be planned. A brain or a history that knows similar jobs is asked for the first shape. Next: `cli.run`.
"""

import asyncio
import getpass
import math
import os
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from springtide import config, errors
from springtide.cli import settings
from springtide.domain import own_machine, resources
from springtide.domain.advice import Adviser
from springtide.domain.plan_rules import PlanRules
from springtide.domain.planning import PlanningConfig
from springtide.domain.profile import ModelFacts
from springtide.domain.shape import Bounds, Shape
from springtide.domain.stages import Stage
from springtide.domain.view import JobView
from springtide.master import advisers
from springtide.planning import acceptance
from springtide.platforms import cgroups

SAMPLE_S = BETWEEN_S = 20.0  # roles of one machine start within seconds, where those of a cluster take a minute
ASK_S = 10.0  # for a first shape; a job that is told none begins small
BOUNDS = ("worker_step", "server_step", "cpu_step")
UNKNOWN = ModelFacts(dense_bytes=1.0, bandwidth=1.0, dim=1.0, batch=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says of a job's size and of planning."""

    script: pathlib.Path
    arguments: tuple[str, ...] = ()
    name: str
    fixed: own_machine.Fixed
    sync: str = "async"
    plan: bool | None = None
    """None: as it makes sense, namely where the number of workers or of servers is open."""
    settings: tuple[str, ...] = ()
    """NAME=VALUE."""
    brain: str = ""
    history: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a job begins."""

    workers: int
    servers: int
    worker_cpu: float | None
    server_cpu: float | None
    threads: int
    planning: PlanRules


def start(asked: Asked, *, cores: int, say: Callable[[str], None]) -> Start:
    """Sizes, and rules if the job is to plan for itself."""
    fixed = asked.fixed
    sizes = resources.size_locally(cores, servers=fixed.servers, workers=fixed.workers, cpu=fixed.cpu)
    if not planned(asked):
        return Start(
            workers=sizes.workers, servers=sizes.servers, worker_cpu=fixed.cpu, server_cpu=fixed.cpu,
            threads=sizes.threads_per_worker, planning=PlanRules(),
        )  # fmt: skip
    if fixed.quota is not None and fixed.quota > cores:
        raise errors.BadInput(f"--quota {fixed.quota:g}: this machine has {cores} cores; give that or less, or none")
    trouble = cgroups.why_not()
    if trouble:
        say(f"cores cannot be held here ({trouble}): only numbers of workers and servers are planned")
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limits = own_machine.bounds(cores, memory, fixed, resize=not trouble)
    rules = rules_of(asked, limits, resize=not trouble)
    assert rules.bounds is not None
    shape, rules = warm(asked, own_machine.first_shape(rules.bounds), rules)
    return Start(
        workers=shape.workers, servers=shape.servers, threads=math.ceil(limits.most.worker_cpu), planning=rules,
        worker_cpu=None if trouble else shape.worker_cpu, server_cpu=None if trouble else shape.server_cpu,
    )  # fmt: skip


def planned(asked: Asked) -> bool:
    """Whether to plan. With both numbers given only cores are left, which one machine hands out by itself; bsp shares
    one batch, so that more workers do not train more."""
    open_numbers = asked.fixed.workers is None or asked.fixed.servers is None
    return asked.plan if asked.plan is not None else open_numbers and asked.sync == "async"


def rules_of(asked: Asked, limits: Bounds, *, resize: bool) -> PlanRules:
    """The rules for one machine, with what the command line changes of them."""
    own = PlanningConfig(
        sample_s=SAMPLE_S, between_changes_s=BETWEEN_S, extra_workers=0, total_cpu=limits.quota.cpu,
        node_cpu=max(limits.most.worker_cpu, limits.most.server_cpu), server_cpu=limits.most.server_cpu,
    )  # fmt: skip
    own_settings = config.load()
    brain = asked.brain or own_settings.brain
    rules = PlanRules(
        bounds=limits, resize=resize, overlap=asked.fixed.quota is None and not brain, config=own,
        key=uuid.uuid4().hex, user=user(), history=asked.history,
        brain=brain, brain_secret_file=own_settings.brain_secret_file,
        features={"script": asked.script.name, "arguments": " ".join(asked.arguments), "job": asked.name},
    )  # fmt: skip
    return changed(rules, asked.settings)


def user() -> str:
    """Who runs this; a container may have no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def changed(rules: PlanRules, given: Sequence[str]) -> PlanRules:
    """The rules with some others: fields of `PlanningConfig`, plain ones of `PlanRules`, and steps of the bounds."""
    plain = [each.name for each in fields(rules) if type(getattr(rules, each.name)) in (int, float, str)]
    config, others, bounds = settings.changed(
        given, (rules.config, settings.planning_fields(policy=True)), (rules, plain), (rules.bounds, BOUNDS)
    )
    known: PlanRules = replace(others, config=config, bounds=bounds)
    return known


def warm(asked: Asked, small: Shape, rules: PlanRules) -> tuple[Shape, PlanRules]:
    """What similar jobs ended with, if anyone remembers some; else the small start."""
    if not rules.brain and not known(rules.history):
        return small, rules
    try:
        advice = asyncio.run(_ask(advisers.made(rules), first_view(asked, rules)))
        wrong = acceptance.refused(advice, first_view(asked, rules), rules.config, epoch=0, now=0.0)
    except errors.UserError:
        raise
    except (errors.SpringtideError, TimeoutError) as error:
        return small, replace(rules, why=f"{rules.why}: nobody could be asked ({str(error) or 'no answer'})")
    if wrong:
        return small, replace(rules, why=f"{rules.why}: advice was refused, {wrong}")
    if advice.plan is None or advice.plan.stage is not Stage.OPTIMIZING:
        return small, replace(rules, why=advice.plan.reason if advice.plan else rules.why)
    return advice.plan.shape, replace(rules, why=advice.plan.reason, stage=Stage.OPTIMIZING)


def first_view(asked: Asked, rules: PlanRules) -> JobView:
    """The job before anything of it runs."""
    assert rules.bounds is not None
    features: Mapping[str, str | float] = {**rules.features, "sync": asked.sync}
    return JobView(name=asked.name, facts=UNKNOWN, bounds=rules.bounds, user=rules.user, features=features)


def known(history: str) -> bool:
    """Whether there is anything to be asked: a file that is not there yet is not made for that."""
    return bool(history) and ("://" in history or pathlib.Path(history).exists())


async def _ask(adviser: Adviser, view: JobView) -> Any:
    try:
        async with asyncio.timeout(ASK_S):
            return await adviser.advise(view, epoch=0, now=0.0)
    finally:
        await adviser.close()
