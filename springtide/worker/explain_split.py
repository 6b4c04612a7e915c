"""Runs a user's script for a few batches, and reports which work data workers could do for it.

Usage: `python -m springtide.worker.explain_split REPORT train.py ...`. Out: a `ScriptReport` as JSON in the file
REPORT. The process then ends in the middle of the script's loop. Next: cli/lab/explain_split.py.
"""

import functools
import os
import pathlib
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

import springtide
from springtide import config, errors
from springtide.data.source import SampleSource
from springtide.dataworker.split.program import arguments
from springtide.dataworker.split.program.payload import FirstStage
from springtide.dataworker.split.report import ScriptReport
from springtide.telemetry import logs
from springtide.worker import error_summary
from springtide.worker.input.batches import Batches
from springtide.worker.job import Job, PreparedData, open_job
from springtide.worker.link.master_link import MasterLink
from springtide.worker.setup import Mode, Wired
from springtide.worker.split.controller import Made, Splitting

ITERABLE = "the data set is an IterableDataset: its samples have no indices that data workers could read. Nothing moves"


class ObservedJob(Job):
    """A job that records the user's loop in order to find a split. The job works without a cluster."""

    def __init__(self, settings: config.Settings, to_master: MasterLink, *, explainer: "ScriptExplainer") -> None:
        super().__init__(settings, to_master)
        self._explainer = explainer
        self._observed: Splitting | None = None

    @property
    def _splitting(self) -> Splitting | None:
        return self._observed or super()._splitting

    def _batches(self, data: PreparedData, mode: Mode, wired: Wired) -> Batches:
        if self.alone and data.source.samples is not None:
            self._observed = self._splits(data.source, wired, self._explainer.on_ready)
        made = super()._batches(data, mode, wired)
        self._explainer.on_prepared(self._splitting, data.source)
        return made


class ScriptExplainer:
    """Observer of one script."""

    def __init__(self, file: str, end: Callable[[int], Any] = os._exit) -> None:
        self.told = False
        """Whether the report is written."""
        self._file, self._end = file, end
        self._shown: tuple[Splitting, SampleSource] | None = None

    def on_prepared(self, splitting: Splitting | None, source: SampleSource) -> None:
        if splitting is None:
            self.leave(ScriptReport(why=ITERABLE))
            return
        self._shown = (splitting, source)
        splitting.watch()

    def on_ready(self) -> None:
        self.leave(self.explain())

    def explain(self) -> ScriptReport:
        if self._shown is None:
            return ScriptReport(
                error="the script never called job.prepare(model, optimizer, dataset), so there is nothing to split",
                blame="usage",
            )
        splitting, source = self._shown
        try:
            made = splitting.make()
        except errors.BadInput as error:
            return ScriptReport(why=f"{error}. Nothing moves", called=splitting.place)
        return report(splitting, source, made)

    def leave(self, report: ScriptReport) -> None:
        """Write the report and end the process, because the rest of the script's loop is not needed."""
        pathlib.Path(self._file).write_bytes(msgspec.json.encode(report))
        sys.stdout.flush()
        sys.stderr.flush()
        self.told = True
        self._end(0)


def report(splitting: Splitting, source: SampleSource, made: Made) -> ScriptReport:
    first = made.pipeline.stages[0].run
    assert isinstance(first, FirstStage)
    explanation = made.explanation
    batch = first(np.arange(1))["batch"] if made.moved else None
    return ScriptReport(
        why=made.why,
        called=splitting.place,
        read_s=read_seconds(source),
        found_s=made.seconds,
        left=tuple(arguments.spelled(path, batch) for _, path in first.left),
        touched=tuple(sorted(arguments.spelled(path, batch) for path in splitting.touched)) if made.moved else (),
        text=explanation.text() if explanation is not None else "",
        split=explanation.to_json() if explanation is not None else None,
    )


def read_seconds(source: SampleSource) -> float:
    """Read the first batch three times, and return the shortest time in seconds."""
    samples = np.arange(min(source.batch_size, source.samples or 0))
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        source.fetch(samples)
        taken.append(time.perf_counter() - began)
    return min(taken)


def main(file: str, given: list[str], end: Callable[[int], Any] = os._exit) -> None:
    script = os.path.abspath(given[0])
    explaining = ScriptExplainer(file, end)
    make = functools.partial(ObservedJob, explainer=explaining)
    springtide.join = lambda **settings: open_job(settings, make)  # user scripts call this function as st.join()
    logs.log_quietly(debug=False)
    sys.argv = given
    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(given[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            explaining.leave(ScriptReport(error=f"the script exited with status {end.code}", blame="script"))
    except BaseException as error:
        if explaining.told:
            raise
        trace = "".join(traceback.format_exception(type(error), error, error_summary.users_part(error.__traceback__)))
        explaining.leave(ScriptReport(error=error_summary.first_line(error, script), blame="script", trace=trace))
    if not explaining.told:
        explaining.leave(explaining.explain())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
