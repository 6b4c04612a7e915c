"""Logs a job's progress to TensorBoard, Weights & Biases or MLflow (`--log-to`), in a process for each tracker.

In: `progress.jsonl` and `events.jsonl` of a run. The agent starts the tracker process, and closes the process's
standard input at the end of the run. The step of a value is the number of samples trained, because batch numbers depend
on the number of workers.

`tracker-KIND.json` of the run records what is logged already. So each point is logged once, even if this process, the
agent or the master restarts. Samples that are trained again, after the loss of a server or after a resume, are not
logged again, so steps only grow. A tracker that fails is tried again, and never harms the job.
"""

import contextlib
import fcntl
import importlib.util
import itertools
import logging
import math
import os
import pathlib
import re
import sys
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from springtide import config, errors, private_files
from springtide.domain.core.validation import UNDECODABLE
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.domain.spec.tracker_target import HYPERPARAMETERS, TrackerTarget, parse_targets
from springtide.telemetry import events, logs, output, progress
from springtide.telemetry.logs import RunFiles
from springtide.telemetry.progress import ProgressPoint

log = logging.getLogger(__name__)
EVERY_S = 5.0  # seconds between two looks at the recorded progress
LATER = 12  # after a failure, the tracker is tried again after this many looks
MOST_TOLD = 300  # characters of an error to show to the user; the log of the tracker has the whole error
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}
TITLES = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
MLFLOW_ENDINGS = {JobPhase.FINISHED: "FINISHED", JobPhase.STOPPED: "KILLED", JobPhase.FAILED: "FAILED"}


def check_packages(log_to: str) -> None:
    """Raise MissingExtra for a tracker whose package is not installed."""
    for target in parse_targets(log_to):
        if importlib.util.find_spec(PACKAGES[target.kind]) is None:
            raise errors.MissingExtra(f"--log-to {target.kind}", target.kind)


class LoggedState(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a tracker: what it has received so far."""

    run: str = ""
    """The tracker's own name of the run."""
    at: float = -math.inf
    samples: int = -1
    step: int = -1
    values: dict[str, float] = {}
    """Last value of each metric of the script."""


class LoggedRow(NamedTuple):
    """Values of one step."""

    step: int
    at: float
    values: dict[str, float]


def new_rows(points: Sequence[ProgressPoint], logged: LoggedState) -> tuple[list[LoggedRow], LoggedState]:
    """Return what a tracker has not got yet. A metric of the script is logged when it changes, as after a validation
    that trains no samples."""
    rows = []
    for point in points:
        if point.at <= logged.at:
            continue
        metrics = point.metrics if point.loss is None else {"loss": point.loss, **point.metrics}
        changed = {name: value for name, value in metrics.items() if logged.values.get(name) != value}
        step = point.samples if point.samples > logged.step else logged.step + 1
        if point.samples > logged.step:
            rows.append(LoggedRow(step, point.at, changed | sizes_of(point)))
        elif point.samples >= logged.samples and changed:
            rows.append(LoggedRow(step, point.at, changed))
        else:
            continue  # nothing new, or samples that are trained again
        logged = msgspec.structs.replace(
            logged, at=point.at, samples=point.samples, step=step, values=logged.values | changed
        )
    return rows, logged


def sizes_of(point: ProgressPoint) -> dict[str, float]:
    names = ("samples_per_s", "workers", "servers", "data_workers", "lag_s")
    values = {name: getattr(point, name) for name in names}
    return {f"job/{name}": float(value) for name, value in values.items() if value is not None}


class Tracker(Protocol):
    """An open run of a tracker. A method may raise any error."""

    where: str
    """Address at which people find the run."""
    run: str

    def describe(self, hyperparameters: Mapping[str, Any]) -> None: ...

    def log(self, rows: Sequence[LoggedRow]) -> None: ...

    def close(self, phase: JobPhase | None) -> None:
        """End the run; with None, another process continues it."""


class TensorBoardRun:
    """Event files of TensorBoard, in a folder for each run."""

    def __init__(self, where: str, run: str, files: RunFiles) -> None:
        from tensorboardX import SummaryWriter

        base = where or str(files.root / "tensorboard")
        base = base if "://" in base else str(pathlib.Path(base).absolute())
        self.run = run or (f"{base}/{files.root.name}" if where else base)
        self.where = self.run
        self._writer = SummaryWriter(logdir=self.run)

    def describe(self, hyperparameters: Mapping[str, Any]) -> None:
        from tensorboardX.summary import hparams

        for summary in hparams(dict(hyperparameters), {"loss": 0.0})[:2]:  # without the end of the session
            self._writer.file_writer.add_summary(summary)

    def log(self, rows: Sequence[LoggedRow]) -> None:
        for row in rows:
            for name, value in row.values.items():
                self._writer.add_scalar(name, value, row.step, walltime=row.at)
        self._writer.flush()

    def close(self, phase: JobPhase | None) -> None:
        self._writer.close()


class WandbRun:
    """A run of Weights & Biases. Weights & Biases' environment variables, such as WANDB_MODE and WANDB_API_KEY,
    apply.
    """

    def __init__(self, where: str, run: str, files: RunFiles) -> None:
        import wandb

        self.run = run or uuid.uuid4().hex[:8]
        self._held = wandb.init(
            project=where or config.variable("WANDB_PROJECT") or job_of(files),
            id=self.run,
            name=files.root.name,
            resume="allow",
            dir=str(files.root.absolute()),
            settings=wandb.Settings(console="off", silent=True),
        )
        self.where = self._held.url or str(self._held.dir)

    def describe(self, hyperparameters: Mapping[str, Any]) -> None:
        self._held.config.update(dict(hyperparameters), allow_val_change=True)

    def log(self, rows: Sequence[LoggedRow]) -> None:
        for row in rows:
            self._held.log({**row.values, "_timestamp": row.at}, step=row.step)

    def close(self, phase: JobPhase | None) -> None:
        self._held.finish(exit_code=0 if phase in (JobPhase.FINISHED, JobPhase.STOPPED) else 1)


class MlflowRun:
    """A run of MLflow, in the experiment of the job's name unless MLFLOW_EXPERIMENT_NAME is set."""

    def __init__(self, where: str, run: str, files: RunFiles) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=where or None)
        if run:
            self._client.update_run(run, status="RUNNING")
        else:
            name = config.variable("MLFLOW_EXPERIMENT_NAME") or job_of(files)
            known = self._client.get_experiment_by_name(name)
            experiment = known.experiment_id if known is not None else self._client.create_experiment(name)
            run = self._client.create_run(experiment, run_name=files.root.name).info.run_id
        self.run, self.where = run, f"run {run} of {where or 'the default tracking server'}"

    def describe(self, hyperparameters: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        known = self._client.get_run(self.run).data.params  # MLflow refuses to change the value of a parameter
        new = {name: value for name, value in hyperparameters.items() if name not in known}
        self._client.log_batch(self.run, params=[Param(name, str(value)[:500]) for name, value in new.items()])

    def log(self, rows: Sequence[LoggedRow]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(re.sub(r"[^\w./ -]", "_", name), value, round(row.at * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        for first in range(0, len(metrics), 1000):  # MLflow takes at most 1000 values in a call
            self._client.log_batch(self.run, metrics=metrics[first : first + 1000])

    def close(self, phase: JobPhase | None) -> None:
        if phase is not None:
            self._client.set_terminated(self.run, MLFLOW_ENDINGS[phase])


KINDS: dict[str, Callable[[str, str, RunFiles], Tracker]] = {
    "tensorboard": TensorBoardRun,
    "wandb": WandbRun,
    "mlflow": MlflowRun,
}


class RunLogger:
    """Logs one run to one tracker, and records its progress in a file of the run."""

    def __init__(self, target: TrackerTarget, files: RunFiles, tell: Callable[[str], None]) -> None:
        self._target, self._files, self._tell = target, files, tell
        self._state = files.tracker(target.kind)
        self._tracker: Tracker | None = None
        self._described: dict[str, Any] = {}
        self._wait = 0
        """Looks to skip after a failure."""
        self._trouble = False

    def update(self, points: Sequence[ProgressPoint], hyperparameters: dict[str, Any], *, hurry: bool = False) -> None:
        self._wait -= 1
        if self._wait > 0 and not hurry:
            return
        try:
            self._log(points, hyperparameters)
            self._trouble = False
        except Exception as error:  # a tracker is third-party code, and must not harm the job
            log.warning("%s failed", self._target, exc_info=True)
            self._wait = LATER
            if not self._trouble:
                why = str(error).strip().split("\n")[0][:MOST_TOLD]
                self._tell(f"{TITLES[self._target.kind]}: {type(error).__name__}: {why}; the job continues")
            self._trouble = True

    def _log(self, points: Sequence[ProgressPoint], hyperparameters: dict[str, Any]) -> None:
        before = read_state(self._state)
        if self._tracker is None:
            self._tracker = KINDS[self._target.kind](self._target.where, before.run, self._files)
            self._tell(f"{TITLES[self._target.kind]}: {self._tracker.where}")
            before = msgspec.structs.replace(before, run=self._tracker.run)
            self._write(before)
        if hyperparameters != self._described:
            self._tracker.describe(hyperparameters)
            self._described = dict(hyperparameters)
        rows, after = new_rows(points, before)
        if rows:
            self._write(after)  # first, so that a crash now loses these rows instead of logging them twice
            try:
                self._tracker.log(rows)
            except Exception:
                self._write(before)
                raise

    def close(self, phase: JobPhase | None) -> None:
        if self._tracker is not None:
            try:
                self._tracker.close(phase)
            except Exception:
                log.warning("%s could not be closed", self._target, exc_info=True)

    def _write(self, state: LoggedState) -> None:
        private_files.replace(self._state, msgspec.json.encode(state))


def read_state(path: pathlib.Path) -> LoggedState:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LoggedState)
    except (OSError, *UNDECODABLE):
        return LoggedState()


class EventReader:
    """Data for trackers from the events of a run: hyper-parameters, and how the job ended."""

    def __init__(self, files: RunFiles) -> None:
        self._tail = logs.LogTail(files.events)
        self.hyperparameters: dict[str, Any] = options_of(files)
        self.phase: JobPhase | None = None

    def read(self) -> None:
        for line in self._tail.more():
            event = events.parse_line(line.encode()) or {"event": ""}
            if event["event"] == HYPERPARAMETERS:
                self.hyperparameters |= event["values"]
            elif event["event"] == "phase":
                phase = JobPhase(event["phase"])
                self.phase = phase if phase.over else None


def job_of(files: RunFiles) -> str:
    card = logs.read_card(files)
    return card.name if card is not None else files.root.name


def options_of(files: RunFiles) -> dict[str, Any]:
    """Return the options of the script and of the job that a run began with."""
    found: dict[str, Any] = {}
    card = logs.read_card(files)
    if card is not None:
        arguments = [*card.arguments, ""]
        for name, value in itertools.pairwise(arguments):
            if name.startswith("--"):
                name, _, own = name.removeprefix("--").partition("=")
                found[name] = own or (value if value and not value.startswith("--") else "true")
    with contextlib.suppress(OSError, *UNDECODABLE):
        spec = msgspec.json.decode(files.spec.read_bytes(), type=JobSpec)
        found |= {f"job/{name}": getattr(spec, name) for name in ("sync", "seed", "workers", "servers")}
    return found


def follow(files: RunFiles, target: TrackerTarget, ended: threading.Event, tell: Callable[[str], None]) -> None:
    """Log until `ended`, then log the rest."""
    logger, story = RunLogger(target, files, tell), EventReader(files)
    while True:
        last = ended.wait(EVERY_S)
        story.read()
        if points := progress.read(files.progress):
            logger.update(points, story.hyperparameters, hurry=last)
        if last:
            return logger.close(story.phase)


def main() -> int:
    """Arguments: RUN_FOLDER TRACKER RESUMED_FOLDER. Ends when the agent closes standard input."""
    root, tracker, resumed = config.own_arguments(sys.argv[1:])
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of a tracker belongs into the tracker's log
    logs.log_to_stderr()
    output.remember(tracker)
    files, ended, (target,) = RunFiles(pathlib.Path(root)), threading.Event(), parse_targets(tracker)

    def watch() -> None:
        sys.stdin.buffer.read()
        ended.set()

    def tell(line: str) -> None:
        line = output.redact(line)
        with contextlib.suppress(OSError, errors.UserError):
            story = events.EventLog(files.events)
            story.write("tracker", why=line)
            story.close()
            print(line, file=told)

    threading.Thread(target=watch, name="springtide-tracker", daemon=True).start()
    fcntl.flock(2, fcntl.LOCK_EX)  # wait for the tracker of an earlier agent, which has the same log
    earlier = RunFiles(pathlib.Path(resumed)).tracker(target.kind)  # a URL names no file here
    if resumed and earlier.exists() and not files.tracker(target.kind).exists():
        private_files.replace(files.tracker(target.kind), earlier.read_bytes())
    follow(files, target, ended, tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
