"""Options of commands, each declared once. The options of `run` are a table that names the spec fields that each option
sets.

`taking` turns the fields of a dataclass into options. Imported for `--help`, so nothing heavy is imported here.
"""

import functools
import inspect
import pathlib
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from springtide import errors

if TYPE_CHECKING:
    from springtide.launch.job_lookup import JobLocation

Command = Callable[..., int]
RUNS = ".springtide/runs"

Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and log more.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")]
Job = Annotated[str | None, typer.Argument(help="Name of the job.  [default: the newest]", metavar="JOB")]
Runs = Annotated[str, typer.Option("--logs", help="Folder of runs and their logs.", metavar="DIR")]


verbs = typer.Typer(rich_markup_mode=None)
"""Verbs of the modules that are imported so far: `cli.app` imports the module of the verb that is called."""


def verb(*examples: str, name: str | None = None) -> Callable[[Command], Command]:
    """Declare a verb; its summary is in the table of `cli.app`."""
    return verbs.command(name, epilog=_epilog(examples))


def command(group: typer.Typer, summary: str, *examples: str) -> Callable[[Command], Command]:
    return group.command(short_help=summary, epilog=_epilog(examples))


def _epilog(examples: Sequence[str]) -> str:
    lines = "\n".join(f"  {example}" for example in examples)
    return f"\b\nExample{'s' * (len(examples) > 1)}:\n{lines}\n"


def declared(parameters: Sequence[inspect.Parameter]) -> Callable[[Command], Command]:
    def decorate(function: Command) -> Command:
        @functools.wraps(function)
        def called(**given: Any) -> int:
            return function(**given)

        setattr(called, "__signature__", inspect.Signature(parameters))  # noqa: B010 - mypy knows of none
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        del called.__wrapped__  # otherwise Typer would use the command's own signature
        return called

    return decorate


def taking(**groups: type) -> Callable[[Command], Command]:
    """Turn each field of the given dataclasses into an option; pass one dataclass per group to the command."""

    def decorate(function: Command) -> Command:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = [
            each.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            for name, each in inspect.signature(function).parameters.items()
            if name not in groups
        ]
        for group in groups.values():
            hints = typing.get_type_hints(group, include_extras=True)
            parameters += [parameter(option.name, hints[option.name], option.default) for option in fields(group)]

        @functools.wraps(function)
        def grouped(**given: Any) -> int:
            made = {
                name: group(**{option.name: given.pop(option.name) for option in fields(group)})
                for name, group in groups.items()
            }
            return function(**given, **made)

        return declared(parameters)(grouped)

    return decorate


def made_folder(option: str, text: str) -> pathlib.Path:
    """Create the folder that an option names, so that a bad path fails before any work."""
    folder = pathlib.Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.BadInput(f"{option} {text}: no folder can be made there ({error.strerror})") from None
    return folder


def parameter(name: str, hint: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereOptions:
    """Location of a job. The card of a job on this machine, if there is one, supplies the defaults: see
    `launch.job_lookup`."""

    platform: Annotated[
        str, typer.Option(help="local, ray or k8s.  [default: where the job was submitted]", metavar="NAME")
    ] = ""
    address: Annotated[str, typer.Option(help="Address of the Ray cluster.", metavar="ADDRESS")] = ""
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace.", metavar="NAME")] = ""
    context: Annotated[str, typer.Option(help="Context of the kubeconfig.", metavar="NAME")] = ""
    kubeconfig: Annotated[str, typer.Option(help="Kubeconfig to use.", metavar="FILE")] = ""
    folder: Runs = RUNS

    def where(self) -> "JobLocation":
        """Return the location; an option that only one platform has implies that platform."""
        from springtide.launch.job_lookup import JobLocation

        names = ("address", "namespace", "context", "kubeconfig")
        given = {name: value for name in names if (value := getattr(self, name))}
        platform = self.platform
        if not platform and given:
            platform = "ray" if set(given) == {"address"} else "k8s" if "address" not in given else ""
        return JobLocation(platform=platform, options=given, folder=self.folder)
