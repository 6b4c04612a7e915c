"""Write the pages of docs/reference that say what the code says: commands, events and metrics.

The commands come from the command line itself. Events and metrics are read from the sources that log and make them. A
test fails when a page is behind, or when an event has no meaning here.
"""

import ast
import pathlib
import re
import sys
import typing
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
sys.path.insert(0, str(ROOT))

COMMANDS_HEAD = """# Commands

This page lists every command with its options, for users who know what they want to do. [Running a
job](../how-to/running.md) and [submitting a job](../how-to/submitting.md) show the commands at work.
`tools/reference_pages.py` writes this page from the command line itself; `springtide COMMAND --help` prints the same.
Every command has `--help` and `--debug`, which shows tracebacks and logs more.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | your code failed |
| 2 | bad usage: an option, a missing file, a port in use |
| 3 | infrastructure: a role was lost or is unreachable |
| 130 | stopped by Ctrl-C or `springtide stop` |
"""
EVENTS_HEAD = """# Events

This page is for programs that read the events of a job: `springtide events JOB --json`, or `events.jsonl` in the folder
of the run. Each line is a JSON object with `at` (seconds since 1970), `event` (its kind) and fields of the kind. `why`
is a sentence. `springtide explain JOB` tells the same as a story. `tools/reference_pages.py` writes this page from the
code that logs the events.

| event | meaning | fields |
|---|---|---|
"""
METRICS_HEAD = """# Metrics

This page is for users of Prometheus. `springtide run --metrics-port 9464` serves these metrics during a job, and
`springtide metrics JOB` prints them once, on any platform. One address, that of the master, has the metrics of every
role; the label `role` tells processes apart, such as `worker-0`. Every metric has the labels `job_name`, and `run`, the
folder of the run. A metric without a value, such as a loss before the first report, is left out. A counter of a role
starts anew with its process. `deploy/grafana.json` is a Grafana dashboard of these metrics: import it, and choose the
job. `tools/reference_pages.py` writes this page from `springtide/master/metrics.py`.

| metric | kind | labels | meaning |
|---|---|---|---|
"""
EVENTS = {
    "agent_took_over": "A new agent found the processes of a lost agent and manages them.",
    "alert": "No allowed number of workers can keep up with the stream.",
    "alert_over": "The workers can keep up with the stream again.",
    "checkpoint": "A checkpoint ended; `outcome` is complete, failed, abandoned or skipped.",
    "decision": "The master decided something, or decided to do nothing.",
    "disk_full": "The disk of the run folder is full, or has room again.",
    "disks": "Hosts share no disk; says what that means for the loss of a server.",
    "ended": "The job is over. Always the last line; `status` is its outcome.",
    "exited": "A process ended; `how` has its exit code or signal.",
    "failed": "A user's script raised; `error` is its first line.",
    "feeding": "The number or the cores of data workers changed, with the reason.",
    "fenced": "The master takes nothing more from a process that it has declared lost.",
    "figures": "Metrics for Prometheus are served, and where.",
    "finished": "A role has done its work.",
    "hyperparameters": "The batch size and the optimizers of the script, for experiment trackers.",
    "joined": "A process joined the job for the first time.",
    "journal_lost": "The journal could not be read; the job restarts from its last checkpoint.",
    "left": "A server has given all its slots away and left.",
    "letters_not_kept": "A process counts dead letters but stores no more of them.",
    "lost": "The master declared a server lost.",
    "master": "A master began; `term` counts the masters of the job.",
    "master_replaced": "The agent replaced the master.",
    "moved": "Slots moved from one server to another while both served.",
    "new_data": "The run began with the model of another run and new data.",
    "online": "The decision about the number of workers of a job on a stream.",
    "phase": "The phase of the job changed.",
    "placed": "Every slot has its first server.",
    "plan": "The planner's answer; `outcome` says whether the job took it.",
    "poisoned": "Shards that nobody could read; the job trains the rest and fails.",
    "ready": "A server or data worker takes requests at `address`.",
    "reconnected": "A process joined again after a lost connection.",
    "resumed": "The run continues another run from its checkpoint.",
    "shorten": "A slow worker gives the end of its lease to another worker.",
    "slow": "Workers were found to be slower than their peers.",
    "tracker": "An experiment tracker (`--log-to`) has begun, and where, or has failed.",
    "uploaded": "A checkpoint was copied to the URL, or could not be.",
    "unreadable": "A worker could not read a part of the data; others will try.",
}
"""Meaning of each event."""
VARIABLE = {
    "springtide/master/handlers.py": ("joined", "reconnected"),
    "springtide/master/data/shared_values.py": ("hyperparameters",),
    "springtide/master/checkpoint/schedule.py": ("new_data", "resumed"),
}
"""Events whose kind is a variable where they are logged, by module."""


def commands_page() -> str:
    import typer

    from springtide.cli import app

    return COMMANDS_HEAD + "".join(command_text(*pair) for pair in commands_in(typer.main.get_command(app.app)))


def commands_in(group: Any, *above: str) -> Iterator[tuple[str, Any]]:
    for name in list(group.commands):
        command = group.load(name) if hasattr(group, "load") else group.commands[name]
        if hasattr(command, "commands"):
            yield from commands_in(command, *above, name)
        else:
            yield " ".join([*above, name]), command


def command_text(name: str, command: Any) -> str:
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and param.name != "debug"]
    usage = " ".join(["springtide", name, *(["[OPTIONS]"] if options else []), *map(argument_word, arguments)])
    lines = [f"\n## `springtide {name}`\n\n{sentence(command.help)}\n\n```text\n{usage}\n```\n"]
    rows = [row(f"`{argument_word(param)}`", param) for param in arguments if getattr(param, "help", "")]
    rows += [row(option_word(param), param) for param in options]
    if rows:
        lines.append("\n| option | meaning |\n|---|---|\n" + "".join(rows))
    return "".join(lines)


def argument_word(param: Any) -> str:
    word = param.metavar or param.name.upper()
    return word if param.required else f"[{word}]"


def option_word(param: Any) -> str:
    names = [*param.opts, *param.secondary_opts]
    if param.is_flag:
        return ", ".join(f"`{name}`" for name in names)
    kind = param.type_descriptor.annotation
    choices = "|".join(map(str, typing.get_args(kind))) if typing.get_origin(kind) is typing.Literal else ""
    word = param.metavar or choices or {int: "N", float: "X"}.get(kind, "TEXT")
    return ", ".join(f"`{name} {word}`" for name in names)


def row(word: str, param: Any) -> str:
    words = sentence(param.help)
    default = param.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    if plain and "[default" not in words and getattr(param, "show_default", True) is True:
        words += f" Default: `{default}`."
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (word, words)) + " |\n"


def sentence(text: str | None) -> str:
    words = re.sub(r"\s+", " ", (text or "").replace("\b", " ")).strip()
    return re.sub(r"\s*\[default: ([^]]*)\]\s*$", r" Default: \1.", words).replace("<", "&lt;")


def events_page() -> str:
    fields: dict[str, set[str]] = {}
    for kind, names in logged():
        fields.setdefault(kind, set()).update(names)
    if fields.keys() != EVENTS.keys():
        raise SystemExit(
            f"give these a meaning in tools/reference_pages.py, or drop it: {fields.keys() ^ EVENTS.keys()}"
        )
    rows = [
        f"| `{kind}` | {EVENTS[kind]} | {', '.join(f'`{name}`' for name in sorted(fields[kind]))} |"
        for kind in sorted(EVENTS)
    ]
    return EVENTS_HEAD + "\n".join(rows) + "\n"


def logged() -> Iterator[tuple[str, list[str]]]:
    """Kind and fields of every event that the master, the agent, the agent's pod and trackers log."""
    folders = [ROOT / "springtide" / folder for folder in ("master", "platforms/agent", "launch/k8s")]
    trackers = ROOT / "springtide" / "telemetry" / "trackers.py"
    for path in sorted([trackers, *(path for folder in folders for path in folder.rglob("*.py"))]):
        for call in calls(path, "log_event", "_log_event", "_tell", "write"):
            if not call.args or (called(call) == "write" and not call.keywords):
                continue
            first, names = call.args[0], [word.arg for word in call.keywords if word.arg]
            if isinstance(first, ast.Constant):
                yield str(first.value), names
            else:
                for kind in VARIABLE.get(str(path.relative_to(ROOT)), ()):
                    yield kind, names


def metrics_page() -> str:
    from springtide.master.metrics import METRICS

    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in sorted(METRICS, key=lambda metric: metric.name)
    ]
    return METRICS_HEAD + "\n".join(rows) + "\n"


def calls(path: pathlib.Path, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and called(node) in names:
            yield node


def called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


PAGES = {"commands": commands_page, "events": events_page, "metrics": metrics_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / f"{name}.md").write_text(page())
