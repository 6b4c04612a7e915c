"""`springtide bench NAME`: hands over to `springtide_lab.bench`; without a name it lists what there is."""

import pathlib
import textwrap
from collections.abc import Sequence

import typer

from springtide import errors
from springtide.cli.common import options
from springtide_lab import bench as benches


def bench(
    name: str | None,
    *,
    quick: bool,
    out: str | None,
    as_json: bool,
    delays: Sequence[str] = (),
    ids: str | None = None,
) -> int:
    if name is None:
        typer.echo("\n".join(listed()))
        return 0
    if name not in benches.BENCHES:
        raise errors.UnknownName("benchmark", name, benches.BENCHES)
    folder = options.made_folder("--out", out) if out else None
    file = pathlib.Path(ids) if ids else None
    benches.run(name, json=as_json, quick=quick, out=folder, delays=dict(map(delay, delays)), ids=file)
    return 0


def listed() -> list[str]:
    lines = ["springtide bench NAME, of these:"]
    for name in benches.BENCHES:
        wrapped = textwrap.wrap(benches.purpose(name), width=60)
        lines += [f"  {label:<17} {words}" for label, words in zip([name, *[""] * len(wrapped)], wrapped, strict=False)]
    return [*lines, "Goals and the last figures: docs/benchmarks.md"]


def delay(text: str) -> tuple[str, float]:
    name, _, seconds = text.partition("=")
    try:
        return name, float(seconds)
    except ValueError:
        raise errors.BadInput(f"--delay {text}: wanted NAME=SECONDS, such as pull=60") from None
