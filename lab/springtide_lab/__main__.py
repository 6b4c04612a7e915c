"""The command `springtide-lab`: measurements that are neither benchmarks nor reproductions of papers."""

import pathlib
import sys
from typing import Annotated

import typer

from springtide import errors
from springtide.cli.common.options import JsonOnly
from springtide.cli.common.render import print_result

app = typer.Typer(name="springtide-lab", rich_markup_mode=None, pretty_exceptions_enable=False)
FAILED = 2


@app.callback()
def springtide_lab() -> None:
    """Tools with which Springtide is measured, besides `springtide bench` and `springtide reproduce`."""


@app.command()
def ports(
    path: Annotated[pathlib.Path, typer.Argument(help="Folder in which pip installed the packages.", metavar="PATH")],
    program: Annotated[
        list[str] | None, typer.Option(help="Program to run; repeatable.  [default: all]", metavar="NAME")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each run.", min=1)] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Few samples, only to check that the ports run.")] = False,
    as_json: JsonOnly = False,
) -> None:
    """Run programs of public packages as they are and in jobs; compare their quality.

    Example: springtide-lab ports packages --program deepctr-torch
    """
    from springtide_lab.ports import deepctr_torch, report, runner, torchrec

    known = {found.name.lower(): found for found in (deepctr_torch.PROGRAM, torchrec.PROGRAM)}
    chosen = program or list(known)
    for name in chosen:
        if name not in known:
            raise errors.UnknownName("program", name, known)
    for name in chosen:  # before the first of them trains for minutes
        known[name].check(path)
    results = [runner.measure(known[name], path, range(seeds), quick=quick) for name in chosen]
    lines = [*report.markdown(results), "", *map(report.facts, results)]
    print_result(lines, results, as_json)


def main(arguments: list[str] | None = None) -> int:
    try:
        return int(app(arguments, prog_name="springtide-lab", standalone_mode=False) or 0)
    except errors.UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
