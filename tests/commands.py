"""List every command by its words, such as `brain serve`, with its option names."""

import typer

from springtide.cli import app


def commands_in(group, *above):
    """All commands of a group and of its groups."""
    for name in list(group.commands):
        command = group.load(name) if hasattr(group, "load") else group.commands[name]
        if hasattr(command, "commands"):
            yield from commands_in(command, *above, name)
        else:
            options = {each for option in command.params for each in [*option.opts, *option.secondary_opts]}
            yield " ".join([*above, name]), options


KNOWN = dict(commands_in(typer.main.get_command(app.app)))
