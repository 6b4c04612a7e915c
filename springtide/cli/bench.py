"""`springtide bench NAME`: hands over to `springtide.bench`; without a name it lists what there is."""

import pathlib

import typer

from springtide import bench as benches
from springtide import errors


def bench(name: str | None, *, quick: bool, out: str | None, as_json: bool) -> int:
    """Run one benchmark."""
    if name is None:
        typer.echo("Benchmarks:\n" + "\n".join(f"  springtide bench {each}" for each in benches.BENCHES))
        return 0
    if name not in benches.BENCHES:
        raise errors.UnknownName("benchmark", name, benches.BENCHES)
    benches.run(name, json=as_json, quick=quick, out=pathlib.Path(out) if out else None)
    return 0
