"""`springtide submit`: reads a spec and submits the job to a platform. With `--dry-run`, the command shows each value
and where the value comes from."""

import pathlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass, replace
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from springtide.cli.common import render
from springtide.cli.common.options import Debug, Json, WhereOptions, verb
from springtide.cli.common.render import WIDTH, print_json, wrap
from springtide.cli.job.run import print_line
from springtide.cli.show import top
from springtide.domain.core import redaction
from springtide.domain.core.resources import show_memory
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob, KubernetesWish, RayWish
from springtide.launch import job_lookup, local_job
from springtide.launch import submit as submission
from springtide.launch.job_lookup import JobLocation
from springtide.launch.spec import resolve, spec_reader
from springtide.launch.spec.spec_reader import ParsedSpec
from springtide.platforms.agent.run_plan import RunPlan
from springtide.telemetry import output

FILE, OPTION, DEFAULT = "spec", "--name", "default"
ELSEWHERE = (KubernetesWish, RayWish)


@verb(
    "springtide submit job.yaml                   on this machine",
    "springtide submit job.yaml --platform k8s --namespace ml",
    "springtide submit job.yaml --platform ray --address 10.0.0.5:6379",
    "springtide submit job.yaml --dry-run         check it only",
)
def submit(
    at: WhereOptions,
    spec: Annotated[str, typer.Argument(help="Spec of the job.", metavar="JOB.YAML")],
    name: Annotated[str, typer.Option(help="Name of the job.  [default: the spec's]")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", help="Show the job until it ends; Ctrl-C leaves the job running.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the spec and show every value with its origin; start nothing.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Submit a job to this machine, a Ray cluster or a Kubernetes cluster. The spec is the same on all platforms.

    A spec needs only one line, such as `script: train.py`. Next commands: springtide status, logs -f, scale, stop,
    explain.
    """
    found, where = spec_reader.read(pathlib.Path(spec)), at.where()
    job = replace(found.job, name=name) if name else found.job
    if where.platform == "k8s" and found.namespace and "namespace" not in where.options:
        where = replace(where, options={**where.options, "namespace": found.namespace})
    if dry_run:
        return rehearse(replace(found, job=job), where, named=bool(name), as_json=as_json)
    code = None if where.platform == "k8s" and job.image and not job.working_dir else found.folder
    submitted = submission.submit(job, where, code=code, say=print_line)
    print(
        f"job {submitted} is submitted ({where.platform or 'local'}): see `springtide status {submitted}`", flush=True
    )
    if follow:
        return followed(submitted, where, as_json=as_json, debug=debug)
    print_json({"job": submitted, "platform": where.platform or "local", "where": dict(where.options)}, as_json)
    return 0


def followed(name: str, where: JobLocation, *, as_json: bool, debug: bool) -> int:
    reach = job_lookup.find(name, where)
    try:
        left = top.watch(reach, Console(file=sys.stderr, highlight=False))
    except KeyboardInterrupt:
        left = True
    if left:
        print(f"\njob {name} continues: `springtide top {name}` shows the job again, `springtide stop {name}` ends it")
        return 0
    status = reach.status()
    print(render.outcome_text(status, reach.places, debug=debug))
    print_json(render.status_object(status, reach.places), as_json)
    return render.exit_code(status)


def rehearse(found: ParsedSpec, where: JobLocation, *, named: bool, as_json: bool) -> int:
    job = found.job if found.job.name else replace(found.job, name=resolve.name_of(found.job.script))
    plan = None
    if where.remote:
        resolve.find_script(found.folder / job.script) if not job.image else None
    else:
        plan = local_job.resolved(job, pathlib.Path(where.folder), code=found.folder, say=print_line)
    values = [(path, shown_value(path, value), origin) for path, value, origin in leaves(job, found, named=named)]
    print(f"job {job.name}, of {found.path}; nothing is started")
    for path, value, origin in values:
        shown = msgspec.json.encode(value).decode() if not isinstance(value, str) else value
        room = WIDTH - 41
        print(f"  {path:<26} {shown if len(shown) <= room else shown[: room - 3] + '...':<{room}} {origin}".rstrip())
    print("\n".join(line for word in describe(plan, where) for line in wrap(word)))
    if as_json:
        origins = {path: origin for path, _, origin in values}
        resolved = None if plan is None else plan.spec
        shown_job: dict[str, Any] = schema.to_plain(job)
        shown_job["spec"] = {name: shown_value(name, value) for name, value in shown_job["spec"].items()}
        plain = {"job": job.name, "object": shown_job, "origins": origins, "resolved": resolved}
        print(msgspec.json.encode(output.redact_all(msgspec.to_builtins(plain))).decode())
    return 0


def shown_value(path: str, value: Any) -> Any:
    if path.endswith("environment") and isinstance(value, Mapping):
        hidden = {name: redaction.HIDDEN for name in value if redaction.is_secret_variable(name)}
        return output.redact_all({**value, **hidden})
    if path.endswith("arguments") and isinstance(value, list | tuple):
        return output.redact_arguments(value)
    return output.redact_all(value)


def leaves(job: ElasticJob, found: ParsedSpec, *, named: bool) -> Iterator[tuple[str, Any, str]]:
    def walk(value: Any, path: schema.Path, given: bool) -> Iterator[tuple[str, Any, str]]:
        if is_dataclass(value) and not isinstance(value, type):
            for field in schema.fields_of(type(value)):
                at, own = (*path, field.key), getattr(value, field.name)
                if field.kind not in ELSEWHERE or own != field.default:
                    yield from walk(own, at, at in found.given)
        elif isinstance(value, Mapping) and any(is_dataclass(part) for part in value.values()):
            for name, inner in value.items():
                yield from walk(inner, (*path, name), True)
        elif given or value not in (None, "", (), {}):
            origin = OPTION if path == (schema.NAME,) and named else FILE if given else DEFAULT
            yield schema.shown(path), value, origin

    yield from walk(job, (), False)


def describe(plan: RunPlan | None, where: JobLocation) -> list[str]:
    if plan is None:
        return [f"{where.platform} chooses the open values when the job starts"]
    spec, rules = plan.spec, plan.spec.planning
    room = local_job.local_capacity()
    lines = [f"this machine has {room.cpu:g} cores and {show_memory(int(room.memory))}"]
    begins = f"begins with {spec.workers} worker(s) and {spec.servers} server(s)"
    if rules.bounds is None:
        return [*lines, f"{begins}; its size is fixed"]
    least, most = rules.bounds.least, rules.bounds.most
    return [
        *lines,
        f"{begins}: {rules.why}",
        f"may become {least.workers} to {most.workers} workers of {least.worker_cpu:g} to {most.worker_cpu:g} cores, "
        f"{least.servers} to {most.servers} servers of {least.server_cpu:g} to {most.server_cpu:g}, within "
        f"{rules.bounds.quota.cpu:g} cores",
    ]
