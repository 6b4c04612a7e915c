"""Experiment trackers get every point once, in growing steps."""

import os
import subprocess
import sys
import threading

import msgspec
import pytest

from springtide import errors
from springtide.domain.spec.job_spec import JobPhase
from springtide.domain.spec.tracker_target import TrackerTarget, parse_targets
from springtide.telemetry import events, logs, trackers
from springtide.telemetry.progress import ProgressLog, ProgressPoint
from springtide.telemetry.trackers import LoggedState, RunLogger, new_rows


def point(at, samples, loss=None, **metrics):
    return ProgressPoint(at=float(at), samples=samples, samples_per_s=10.0, loss=loss, metrics=metrics, workers=2)


def test_targets_have_places_and_unknown_ones_are_refused():
    assert parse_targets("") == ()
    assert parse_targets("tensorboard, mlflow:http://h:5000") == (("tensorboard", ""), ("mlflow", "http://h:5000"))
    with pytest.raises(errors.UnknownName, match="tensorboard"):
        parse_targets("tensorbord")
    with pytest.raises(errors.BadInput, match="wandb is named twice"):
        parse_targets("wandb:a,wandb:b")


def test_missing_package_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(errors.MissingExtra, match=r"--log-to mlflow needs .*springtide\[mlflow\]"):
        trackers.check_packages("mlflow:http://h")


def test_rows_are_logged_once_and_steps_only_grow():
    points = [point(1, 100, 0.9), point(2, 200, 0.8), point(3, 150, 0.85), point(4, 300, 0.7)]
    rows, logged = new_rows(points[:2], LoggedState())
    assert [(row.step, row.values["loss"]) for row in rows] == [(100, 0.9), (200, 0.8)]
    assert rows[0].values["job/workers"] == 2 and rows[0].values["job/samples_per_s"] == 10
    rows, logged = new_rows(points, logged)
    assert [row.step for row in rows] == [300], "samples that are trained again are not logged again"
    assert new_rows(points, logged) == ([], logged)


def test_metric_is_logged_when_it_changes_even_without_new_samples():
    points = [point(1, 100, val=0.5), point(2, 200, val=0.5), point(3, 200, val=0.6), point(4, 200, val=0.6)]
    rows, logged = new_rows(points, LoggedState())
    assert [(row.step, row.values.get("val")) for row in rows] == [(100, 0.5), (200, None), (201, 0.6)]
    assert [row.step for row in new_rows([point(5, 300)], logged)[0]] == [300]


class FailingTracker:
    """Stand-in that fails in its first calls."""

    where = run = "here"

    def __init__(self):
        self.failures, self.rows, self.closed = 1, [], []

    def describe(self, hyperparameters):
        pass

    def log(self, rows):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no route\nto host")
        self.rows += rows

    def close(self, phase):
        self.closed.append(phase)


def test_failing_tracker_is_reported_once_and_tried_again(tmp_path, monkeypatch):
    told, tracker, files = [], FailingTracker(), logs.make_run(tmp_path, "train")
    monkeypatch.setitem(trackers.KINDS, "mlflow", lambda *_: tracker)
    logger = RunLogger(TrackerTarget("mlflow"), files, told.append)
    for _ in range(trackers.LATER):
        logger.update([point(1, 100, 0.9)], {})
    assert told == ["MLflow: here", "MLflow: ConnectionError: no route; the job continues"] and not tracker.rows
    logger.update([point(1, 100, 0.9), point(2, 200, 0.8)], {})
    assert [row.step for row in tracker.rows] == [100, 200]
    logger.close(JobPhase.FINISHED)
    assert tracker.closed == [JobPhase.FINISHED] and len(told) == 2


def test_run_of_a_job_that_goes_on_is_left_open(tmp_path, monkeypatch):
    """A tracker process whose agent was killed leaves the run to the next one."""
    tracker, files, ended = FailingTracker(), logs.make_run(tmp_path, "train"), threading.Event()
    tracker.failures = 0
    monkeypatch.setitem(trackers.KINDS, "mlflow", lambda *_: tracker)
    ended.set()
    ProgressLog(files.progress).add(point(1, 100, 0.9))
    write_event(files, "hyperparameters", values={"lr": 0.1})
    trackers.follow(files, TrackerTarget("mlflow"), ended, print)
    write_event(files, "phase", phase="finished", why="")
    trackers.follow(files, TrackerTarget("mlflow"), ended, print)
    assert tracker.closed == [None, JobPhase.FINISHED] and len(tracker.rows) == 1


def write_event(files, kind, **fields):
    story = events.EventLog(files.events)
    story.write(kind, **fields)
    story.close()


def run_with_history(folder, job="train", samples=(100, 200, 300)):
    files = logs.make_run(folder, job)
    card = logs.RunCard(name=job, script="train.py", arguments=("--lr", "0.1", "--fast", "--dim=8"), began_at=0.0)
    logs.write_card(files, card)
    add_points(files, samples)
    write_event(files, "hyperparameters", values={"batch_size": 64, "optimizer": "Adagrad"})
    return files


def add_points(files, samples):
    history = ProgressLog(files.progress)
    for number in samples:
        history.add(point(1_800_000_000 + number, number, loss=100 / number))


def run_tracker(files, target, resumed="", **variables):
    """Run the tracker process as an agent does that ends at once."""
    command = [sys.executable, "-m", "springtide.telemetry.trackers", str(files.root), target, resumed]
    environment = {**os.environ, **variables}
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, check=True
    )


def restarted_and_resumed(tmp_path, target, **variables):
    """Log a run in two processes, and a resumed run that trains some samples again."""
    files = run_with_history(tmp_path)
    said = run_tracker(files, target, **variables).stdout
    add_points(files, [400])
    run_tracker(files, target, **variables)
    again = run_with_history(tmp_path, "train-2", samples=(350, 500))
    write_event(again, "phase", phase="finished", why="")
    run_tracker(again, target, str(files.root), **variables)
    return files, said


@pytest.mark.soak
@pytest.mark.extra("tensorboardX", "tensorboard")
def test_tensorboard_reads_scalars_and_hyperparameters(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    files, said = restarted_and_resumed(tmp_path, f"tensorboard:{tmp_path / 'tb'}")
    assert said == f"TensorBoard: {tmp_path / 'tb' / 'train'}\n"
    read = EventAccumulator(str(tmp_path / "tb" / "train"))
    read.Reload()
    assert [(scalar.step, scalar.wall_time) for scalar in read.Scalars("loss")] == [
        (step, 1_800_000_000 + step) for step in (100, 200, 300, 400, 500)
    ]
    assert [scalar.value for scalar in read.Scalars("job/workers")] == [2] * 5
    start = metadata.parse_session_start_info_plugin_data(
        read.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    )
    values = {name: value.number_value or value.string_value for name, value in start.hparams.items()}
    assert values == {"lr": "0.1", "fast": "true", "dim": "8", "batch_size": 64.0, "optimizer": "Adagrad"}
    assert msgspec.json.decode(files.tracker("tensorboard").read_bytes())["samples"] == 400


@pytest.mark.soak
@pytest.mark.extra("mlflow")
def test_mlflow_reads_metrics_and_parameters(tmp_path, monkeypatch):
    variables = {"MLFLOW_ALLOW_FILE_STORE": "true"}  # a server or a database would be a bigger dependency
    store = f"file://{tmp_path / 'mlruns'}"
    restarted_and_resumed(tmp_path, f"mlflow:{store}", **variables)
    reader = (
        "import json, sys, mlflow\n"
        f"client = mlflow.MlflowClient({store!r})\n"
        "run, = client.search_runs([client.get_experiment_by_name('train').experiment_id])\n"
        "steps = [(m.step, m.timestamp) for m in client.get_metric_history(run.info.run_id, 'loss')]\n"
        "print(json.dumps([run.info.status, run.data.params, steps]))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", reader], capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    status, parameters, steps = msgspec.json.decode(shown.stdout)
    assert status == "FINISHED" and parameters["lr"] == "0.1" and parameters["batch_size"] == "64"
    assert steps == [[step, 1000 * (1_800_000_000 + step)] for step in (100, 200, 300, 400, 500)]


@pytest.mark.soak
@pytest.mark.extra("wandb")
def test_wandb_keeps_the_run_offline(tmp_path):
    restarted_and_resumed(tmp_path, "wandb:ctr", WANDB_MODE="offline")
    reader = (
        "import json, struct, sys\n"
        "from wandb.proto import wandb_internal_pb2 as pb\n"
        "for path in sys.argv[1:]:\n"
        "    data, at, held = open(path, 'rb').read(), 7, b''\n"  # a log of LevelDB, after a header of 7 bytes
        "    while at + 7 < len(data):\n"
        "        if at % 32768 > 32768 - 7:\n"
        "            at += -at % 32768\n"
        "        _, size, kind = struct.unpack_from('<IHB', data, at)\n"
        "        held, at = held + data[at + 7 : at + 7 + size], at + 7 + size\n"
        "        if kind in (2, 3):\n"  # the record goes on in the next block
        "            continue\n"
        "        record, held = pb.Record.FromString(held), b''\n"
        "        if record.WhichOneof('record_type') == 'run':\n"
        "            print(json.dumps(['run', record.run.run_id, record.run.project]))\n"
        "        for item in record.history.item:\n"
        "            name = item.key or '/'.join(item.nested_key)\n"
        "            if name == 'loss':\n"
        "                print(json.dumps(['loss', record.history.step.num, float(item.value_json)]))\n"
    )
    files = sorted(tmp_path.glob("*/wandb/offline-run-*/*.wandb"), key=os.path.getmtime)
    shown = subprocess.run([sys.executable, "-c", reader, *map(str, files)], capture_output=True, text=True, check=True)
    lines = [msgspec.json.decode(line) for line in shown.stdout.splitlines()]
    assert len({line[1] for line in lines if line[0] == "run"}) == 1 and lines[0][2] == "ctr"
    assert [line[1] for line in lines if line[0] == "loss"] == [100, 200, 300, 400, 500]
