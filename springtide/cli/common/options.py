"""Options of commands, each declared once, and the decorators that declare commands.

A command with a dataclass as its argument has an option for each field. Every command imports this module, even for
`--help`, so the module imports no slow modules.
"""

import functools
import inspect
import math
import pathlib
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from springtide import errors

if TYPE_CHECKING:
    from springtide.launch.job_lookup import JobLocation

Command = Callable[..., int]
RUNS = ".springtide/runs"

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and log more.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")]
JsonOnly = Annotated[bool, typer.Option("--json", help="Print one JSON object, and no text.")]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of a live panel, as in a pipe.")]
Job = Annotated[str | None, typer.Argument(help="Name of the job.  [default: the newest]", metavar="JOB")]
Runs = Annotated[str, typer.Option("--logs", help="Folder of runs and their logs.", metavar="DIR")]


verbs = typer.Typer(rich_markup_mode=None)
"""Verbs of the modules that have been imported. `cli.app` imports only the module of the verb that is called."""


def verb(
    *examples: str, name: str | None = None, parameters: Sequence[inspect.Parameter] = ()
) -> Callable[[Command], Command]:
    """Declare a verb. The summary of the verb is in the table of `cli.app`. `parameters` declares the options that a
    command takes as `**`.
    """

    def declare(function: Command) -> Command:
        verbs.command(name, epilog=_epilog(examples))(_with_options(function, parameters))
        return function

    return declare


def verb_group(name: str, help: str, *examples: str) -> typer.Typer:
    """Declare a verb that has subcommands."""
    group = typer.Typer(name=name, help=help, rich_markup_mode=None, no_args_is_help=True, epilog=_epilog(examples))
    verbs.add_typer(group)
    return group


def command(group: typer.Typer, *examples: str) -> Callable[[Command], Command]:
    """Declare a command of a group. The first sentence of its docstring is its summary."""

    def declare(function: Command) -> Command:
        group.command(epilog=_epilog(examples))(_with_options(function))
        return function

    return declare


def _epilog(examples: Sequence[str]) -> str:
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExample{'s' * (len(examples) > 1)}:\n{lines}\n"


def _with_options(function: Command, parameters: Iterable[inspect.Parameter] = ()) -> Command:
    """Convert a command to the form that Typer reads: with an option for each field of a dataclass argument, and with
    `--debug`.

    `cli.app` handles `--debug` for all commands, so only commands that log declare it as an option.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    own = {
        name: option
        for name, option in inspect.signature(function).parameters.items()
        if option.kind is not option.VAR_KEYWORD
    }
    groups = {name: hints[name] for name in own if is_dataclass(hints[name])}
    known = [parameter(name, hints[name], option.default) for name, option in own.items() if name not in groups]
    for group in groups.values():
        of_fields = typing.get_type_hints(group, include_extras=True)
        known += [parameter(option.name, of_fields[option.name], option.default) for option in fields(group)]
    known += parameters
    logs = any(option.name == "debug" for option in known)
    known += [] if logs else [parameter("debug", Debug, False)]

    @functools.wraps(function)
    def called(**given: Any) -> int:
        for name, value in given.items():
            # refuse NaN, because NaN passes every comparison with a bound
            if isinstance(value, float) and math.isnan(value):
                raise errors.BadInput(f"--{name.replace('_', '-')} nan: expected a number")
        if not logs:
            del given["debug"]
        for name, group in groups.items():
            given[name] = group(**{option.name: given.pop(option.name) for option in fields(group)})
        return function(**given)

    setattr(called, "__signature__", inspect.Signature(known))  # noqa: B010 - mypy knows of none
    called.__annotations__ = {option.name: option.annotation for option in known}
    del called.__wrapped__  # otherwise Typer would use the command's own signature
    return called


def pairs(flag: str, texts: Iterable[str] | None, example: str) -> dict[str, str]:
    """Parse a NAME=VALUE option that may be given several times."""
    found = {}
    for text in texts or ():
        name, mark, value = text.partition("=")
        if not mark:
            raise errors.BadInput(f"{flag} {text}: expected NAME=VALUE, such as {example}")
        found[name.strip()] = value.strip()
    return found


def made_folder(option: str, text: str) -> pathlib.Path:
    """Create the folder that an option names, so that a bad path fails before any work."""
    folder = pathlib.Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.BadInput(f"{option} {text}: cannot create a folder there ({error.strerror})") from None
    return folder


def parameter(name: str, hint: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereOptions:
    """Location of a job. If this machine has the job's card, the card supplies defaults for the location; see
    `launch.job_lookup`.
    """

    platform: Annotated[
        str, typer.Option(help="local, ray or k8s.  [default: where the job was submitted]", metavar="NAME")
    ] = ""
    address: Annotated[str, typer.Option(help="Address of the Ray cluster.", metavar="ADDRESS")] = ""
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace.", metavar="NAME")] = ""
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.", metavar="NAME")] = ""
    kubeconfig: Annotated[str, typer.Option(help="Kubeconfig to use.", metavar="FILE")] = ""
    folder: Runs = RUNS

    def where(self) -> "JobLocation":
        """Return the location. An option that exists on only one platform implies that platform."""
        from springtide.launch.job_lookup import JobLocation

        names = ("address", "namespace", "context", "kubeconfig")
        given = {name: value for name in names if (value := getattr(self, name))}
        platform = self.platform
        if not platform and given:
            platform = "ray" if set(given) == {"address"} else "k8s" if "address" not in given else ""
        return JobLocation(platform=platform, options=given, folder=self.folder)
