"""Options that many commands have. Next: `cli.app` and `cli.trying` declare the commands."""

from typing import Annotated

import typer

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks, and log more.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of standard output.")]
RUNS = ".springtide/runs"
Job = Annotated[str | None, typer.Argument(help="Which job; the newest if not given.", metavar="JOB")]
Runs = Annotated[str, typer.Option("--logs", help="Where runs keep their logs.", metavar="DIR")]
