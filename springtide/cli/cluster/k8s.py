"""`springtide k8s install | uninstall | status | operator`: Springtide in a Kubernetes cluster."""

import asyncio
import pathlib
import secrets
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import msgspec
import typer
import yaml

from springtide import __version__, errors, file_input
from springtide.brain.service import serve
from springtide.cli.common.options import Debug, JsonOnly, command, verb_group
from springtide.cli.common.render import print_result
from springtide.platforms.k8s.api.client import with_client
from springtide.platforms.k8s.client import install as installation
from springtide.platforms.k8s.objects import install_manifests
from springtide.platforms.k8s.objects.pods import Site
from springtide.platforms.k8s.operator import process
from springtide.rpc.transport import tls
from springtide.telemetry import logs

group = verb_group(
    "k8s",
    "Install Springtide in a Kubernetes cluster, check it or remove it.",
    "springtide k8s install --dry-run > springtide.yaml",
    "springtide k8s install --image registry/springtide:0.1",
    "springtide k8s status",
)

SHORT = 100
"""A list or mapping whose JSON has at most this many characters gets a single line in a manifest."""

Space = Annotated[str, typer.Option("--namespace", help="Namespace of the operator.", metavar="NAME")]
Only = Annotated[str, typer.Option(help="Watch jobs of this namespace only.", metavar="NAMESPACE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """A cluster, selected by the same options as kubectl's."""

    kubeconfig: Annotated[str, typer.Option(help="Kubeconfig to use.  [default: as kubectl]", metavar="FILE")] = ""
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.  [default: the current]", metavar="NAME")] = (
        ""
    )


@command(
    group,
    "springtide k8s install --image registry/springtide:0.1 \\\n"
    "    --brain postgresql://brain:pw@db/brain --capacity 640,2560G",
)
def install(
    cluster: ClusterOptions,
    image: Annotated[str, typer.Option(help="Image to install.  [default: springtide:VERSION]")] = "",
    namespace: Space = "springtide",
    only: Only = "",
    brain: Annotated[str, typer.Option(help="Install a brain on this PostgreSQL.", metavar="URL")] = "",
    capacity: Annotated[
        str, typer.Option(help="With --brain: cores and memory of all jobs together.", metavar="CORES[,SIZE]")
    ] = "",
    replicas: Annotated[int, typer.Option(min=1, help="Number of brains.")] = 2,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the objects as YAML and change nothing.")] = False,
) -> int:
    """Install or upgrade Springtide. The installation consists of custom resources, the operator, its rights and
    optionally a brain."""
    if brain and not capacity:
        raise errors.BadInput("--brain needs --capacity: cores and memory of all jobs together, such as 640,2560G")
    plan = install_manifests.InstallPlan(
        image=image or default_image(),
        namespace=namespace,
        only=only,
        database=brain,
        brain_capacity=capacity,
        brain_secret=secrets.token_hex(32) if brain else "",
        brain_replicas=replicas,
        brain_files=serve.make_certificates() if brain else {},
    )
    objects = install_manifests.everything(plan)
    if not image:
        print(
            f"springtide: without --image, pods need {plan.image}, which no public registry has; build it "
            "(deploy/Dockerfile), push it, and give --image REGISTRY/NAME:TAG",
            file=sys.stderr,
        )
    if dry_run:
        print(as_yaml(objects), end="")
        return 0
    with_client(asdict(cluster), lambda client: installation.apply(client, objects, print))
    print(f"Springtide is installed in {namespace}; springtide k8s status shows when its operator is ready")
    return 0


@command(group, "springtide k8s uninstall")
def uninstall(
    cluster: ClusterOptions,
    namespace: Space = "springtide",
    only: Only = "",
    definitions: Annotated[
        bool, typer.Option("--definitions", help="Also delete all ElasticJobs and ScalePlans of the cluster.")
    ] = False,
) -> int:
    """Remove Springtide: the operator, its rights and the brain. Running jobs continue, but without the operator no
    process creates pods for these jobs.
    """
    plan = install_manifests.InstallPlan(
        image="-", namespace=namespace, only=only, database="-", brain_capacity="-", brain_files={"-": b""}
    )
    objects = install_manifests.everything(plan)
    with_client(asdict(cluster), lambda client: installation.remove(client, objects, print, definitions=definitions))
    return 0


@command(group, "springtide k8s status --json")
def status(cluster: ClusterOptions, namespace: Space = "springtide", as_json: JsonOnly = False) -> int:
    """Check the installation: custom resources, operator and brain."""
    found = with_client(asdict(cluster), lambda client: installation.examine(client, namespace))
    well = all(finding.well for finding in found)
    lines = (f"{'ok' if finding.well else 'NO':<3} {finding.what:<24} {finding.said}" for finding in found)
    print_result(lines, {"well": well, "found": found}, as_json)
    return 0 if well else 3


@command(group, "springtide k8s operator --image registry/springtide:0.1")
def operator(
    cluster: ClusterOptions,
    image: Annotated[str, typer.Option(help="Image of jobs without an image.  [default: springtide:VERSION]")] = "",
    namespace: Annotated[
        list[str] | None, typer.Option(help="Watch jobs of this namespace; repeatable.  [default: all]", metavar="NAME")
    ] = None,
    brain: Annotated[str, typer.Option(help="Brain of jobs without a brain.", metavar="HOST:PORT")] = "",
    brain_secret_file: Annotated[str, typer.Option(help="Secret that masters send to the brain.", metavar="FILE")] = "",
    brain_tls: Annotated[
        str, typer.Option(help="Certificates of masters for the brain: ca.crt, tls.crt, tls.key.", metavar="DIR")
    ] = "",
    scheduler: Annotated[
        str, typer.Option(help="Scheduler of pods whose job names no scheduler.", metavar="NAME")
    ] = "",
    health: Annotated[str, typer.Option(help="Serve a liveness probe here.", metavar="URL")] = "",
    debug: Debug = False,
) -> int:
    """Run the operator until it is stopped. The operator creates a master for every ElasticJob, and the pods that
    masters ask for.
    """
    logs.log_to_stderr(debug=debug)
    secret = (
        file_input.read(pathlib.Path(brain_secret_file), what="a brain's secret").strip() if brain_secret_file else ""
    )
    files: dict[str, bytes] = {}
    if brain_tls:
        tls.identity(brain_tls)  # report a wrong folder immediately
        parts = (tls.AUTHORITY, tls.CERTIFICATE, tls.KEY)
        files = {part: (pathlib.Path(brain_tls) / part).read_bytes() for part in parts}
    options = process.OperatorOptions(
        site=Site(image=image or default_image(), brain=brain, brain_tls=bool(brain_tls), scheduler=scheduler),
        namespaces=tuple(namespace or ()),
        **asdict(cluster),
        brain_secret=secret,
        brain_files=files,
        health=health,
    )
    asyncio.run(until_told(options))
    print("operator: stopped", file=sys.stderr)
    return 0


async def until_told(options: process.OperatorOptions) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await process.run(options, stop, lambda: print("operator: watching jobs", file=sys.stderr, flush=True))


def default_image() -> str:
    return f"springtide:{__version__}"


def as_yaml(objects: list[Any]) -> str:
    return "".join(
        f"---\n{yaml.dump(thing, Dumper=ManifestDumper, sort_keys=False, width=1 << 20)}" for thing in objects
    )


class ManifestDumper(yaml.SafeDumper):  # type: ignore[misc]
    """YAML dumper that writes a short list or mapping on one line, and repeats equal objects in full."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        return super().represent_sequence(tag, sequence, flow_style=is_short(sequence))

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> Any:
        return super().represent_mapping(tag, mapping, flow_style=is_short(mapping))


def is_short(value: Any) -> bool:
    return len(msgspec.json.encode(value)) <= SHORT
