"""`springtide bench` and `springtide reproduce`, which run the programs of the lab (`springtide-lab`)."""

import importlib.util
from typing import Annotated, Any

import typer

from springtide import errors
from springtide.cli.common.options import Json, made_folder, verb


@verb("springtide bench store --json")
def bench(
    name: Annotated[str | None, typer.Argument(help="Benchmark to run.  [default: list all]")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use small sizes, only to check that the benchmark works.")
    ] = False,
    out: Annotated[str | None, typer.Option(help="Folder for plots.", metavar="DIR")] = None,
    delay: Annotated[
        list[str] | None, typer.Option(help="Make a baseline take this long.", metavar="NAME=SECONDS")
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(help="allocate: ids of real data, samples by tables.", metavar="FILE.npy|FILE.parquet"),
    ] = None,
    as_json: Json = False,
) -> int:
    """Run a benchmark, which alternates Springtide and a peer in one run and prints the ratio last."""
    benches = _of_lab("bench")
    if name is None:
        typer.echo(benches.listing())
    else:
        folder = made_folder("--out", out) if out else None
        benches.run(name, json=as_json, quick=quick, out=folder, delays=delay or (), ids=ids)
    return 0


@verb(
    "springtide reproduce dlrover-rm --out figures --json",
    "springtide reproduce herald --ids clicks.npy",
    "springtide reproduce goldminer --trace jobs.csv",
    "springtide reproduce kale --trace traffic.csv",
)
def reproduce(
    name: Annotated[str, typer.Argument(help="Paper: dlrover-rm, herald, goldminer or kale.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.", show_default="3; 10; 20")] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=10, help="dlrover-rm: jobs of a cluster's day; goldminer: of 8 hours.", show_default="500; 121"
        ),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help="herald: ids of real data, samples by tables.", metavar="FILE.npy|FILE.parquet")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="goldminer: jobs with timestamp, duration (s), num_gpus; kale: traffic, time and number; or a folder.",
            metavar="FILE.csv",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="goldminer: also divide data workers by this metric; may be repeated.", metavar="NAME"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use few jobs, only to check that the reproduction works.")
    ] = False,
    out: Annotated[str | None, typer.Option(help="Folder for plots.", metavar="DIR")] = None,
    as_json: Json = False,
) -> int:
    """Reproduce a paper's figures in simulation. The output shows ours, the paper's figures and the goals."""
    runner = _of_lab("reproduce.runner")
    metrics = tuple(metric or ())
    asked = runner.ReproduceOptions(seeds=seeds, jobs=jobs, quick=quick, ids=ids, trace=trace, metrics=metrics)
    runner.run(name, asked, folder=None if out is None else made_folder("--out", out), as_json=as_json)
    return 0


def _of_lab(module: str) -> Any:
    if importlib.util.find_spec("springtide_lab") is None:
        raise errors.MissingLab(module.partition(".")[0])
    return importlib.import_module(f"springtide_lab.{module}")
