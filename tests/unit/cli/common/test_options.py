"""Option groups declared in a file of their own."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from springtide.cli.common.options import command


@dataclass(frozen=True, kw_only=True)
class Colours:
    red: Annotated[int, typer.Option(min=0, max=255, help="How red.")] = 7
    blue: Annotated[str | None, typer.Option(help="How blue.")] = None


app = typer.Typer()


@command(app, "north --red 9")
def paint(wall: str, colours: Colours, coats: Annotated[float, typer.Option(help="How often.")] = 1.0) -> int:
    """Paint a wall."""
    print(wall, coats, colours)
    return 0


def run(*words):
    return CliRunner().invoke(app, list(words))


def test_option_group_reaches_the_command_as_one_value():
    assert run("north", "--coats", "2", "--red", "9").output.strip() == "north 2.0 Colours(red=9, blue=None)"
    assert run("north").output.strip() == "north 1.0 Colours(red=7, blue=None)"


def test_options_of_a_dataclass_are_checked_and_shown_like_the_commands_own():
    shown = run("--help").output
    assert "Paint a wall." in shown and all(word in shown for word in ("--coats", "--red", "How blue."))
    assert run("north", "--red", "300").exit_code == 2


def test_every_command_has_debug_and_refuses_non_numbers():
    assert "--debug" in run("--help").output and run("north", "--debug").exit_code == 0
    assert "--coats nan: expected a number" in str(run("north", "--coats", "nan").exception)
