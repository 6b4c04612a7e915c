"""Measure the gain of data workers for a job with more preprocessing than compute, with one core for each side.

In: a job with a click model (text_clicks.py). Its trainer does all preprocessing, or its data workers do it with the
automatic split or the split at the data set. Also a job with cheap preprocessing. Out: `vs_dataset_split`, `vs_ideal`,
`overhead_when_cheap`.
"""

import contextlib
import functools
import os
import pathlib
from concurrent import futures
from typing import Any

from springtide import config
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report

INSIDE, DATASET, OURS, FAKE = "in process", "data set", "automatic", "fake data"
LINEAR = "a core alone"
SIZES = {"batch": 2048, "samples": 2048 * 12, "hidden": 96}
CHEAP = {"batch": 512, "samples": 512 * 200, "hidden": 96}
WARM = 12  # batches to train before a round, more than may be queued


def bench(options: Options) -> report.Result:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return report.not_measured(GOALS, "two cores are needed: one for the trainer, one for data workers")
    seconds, rounds = (0.2, 1) if options.quick else (1.2, 3)
    sizes = SIZES | ({"batch": 256, "samples": 256 * 12} if options.quick else {})
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(harness.scratch())
        with futures.ThreadPoolExecutor() as pool:  # in parallel, because importing torch takes seconds
            ways = (OURS, DATASET)
            starting = {way: pool.submit(trainer, stack, way, folder / way, cores, sizes) for way in ways}
            trainers = {way: one.result() for way, one in starting.items()}
            asked = {way: pool.submit(trainers[way].ask, "round", what="split") for way in ways}
            moved = {way: one.result()["moved"] for way, one in asked.items()}
            packages = {OURS: OURS, DATASET: DATASET, FAKE: OURS}
            begun = {
                way: pool.submit(worker, stack, folder / package, cores, sizes, fake=way == FAKE)
                for way, package in packages.items()
            }
            making = {way: one.result() for way, one in begun.items()}
        sides: dict[str, harness.Measure] = {}
        for way in (INSIDE, DATASET, OURS, FAKE):
            feeders = [making[way].ask("round", what="address")["address"]] if way in making else []
            training = trainers.get(way, trainers[OURS])
            sides[way] = functools.partial(pace, training, feeders, seconds, fake=way == FAKE)
        sides[LINEAR] = functools.partial(making[OURS].figure, what="alone", seconds=seconds)
        measured = harness.alternate(sides, rounds=rounds, warmup=0)
    return judge(measured, moved[OURS], cheap(options, cores))


def trainer(
    stack: contextlib.ExitStack, way: str, folder: pathlib.Path, cores: list[int], sizes: dict[str, int]
) -> peers.Worker:
    options = {"role": "trainer", "way": way, "folder": str(folder), "core": cores[0], **sizes}
    return _process(stack, options)


def worker(
    stack: contextlib.ExitStack, folder: pathlib.Path, cores: list[int], sizes: dict[str, int], *, fake: bool = False
) -> peers.Worker:
    return _process(stack, {"role": "worker", "folder": str(folder), "core": cores[1], "fake": fake, **sizes})


def _process(stack: contextlib.ExitStack, options: dict[str, Any]) -> peers.Worker:
    environment = config.child_environment({}, {})
    return stack.enter_context(peers.Worker("dataworkers/fed_process", options=options, environment=environment))


def pace(training: peers.Worker, feeders: list[str], seconds: float, *, fake: bool) -> dict[str, float]:
    """Return steps per second with these data workers or without any; batches that are already queued are trained
    first."""
    answer = training.ask("round", what="train", seconds=seconds, warm=WARM, addresses=feeders, fake=fake)
    if bool(feeders) != bool(answer["made"]):
        raise peers.PeerFailed(f"{answer['made']} of {answer['steps']} batches came from {len(feeders)} data workers")
    return {"figure": answer["figure"], "cpu_s": answer["cpu_s"]}


def cheap(options: Options, cores: list[int]) -> tuple[harness.Rounds, dict[str, Any]]:
    """Measure the cost of a step with and without the tuner, for a job with cheap preprocessing.

    The cost is the CPU seconds of all threads plus the seconds for which the training loop was blocked. Also return
    the last answer of the trainer with the tuner, which says how many data workers the tuner wanted.
    """
    seconds, rounds = (0.3, 2) if options.quick else (0.7, 5)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(harness.scratch())
        with futures.ThreadPoolExecutor() as pool:
            begun = {way: pool.submit(trainer, stack, way, folder, cores, CHEAP) for way in ("auto", "off")}
            sides = {way: one.result() for way, one in begun.items()}
        told: dict[str, Any] = {}

        def cost(way: str) -> float:
            told[way] = sides[way].ask("round", what="train", seconds=seconds, warm=4)
            return float(told[way]["cpu_s"] + told[way]["blocked_s"])

        costs = {way: functools.partial(cost, way) for way in sides}
        return harness.alternate(costs, rounds=rounds, warmup=1), told["auto"]


GOALS: tuple[tuple[str, float, report.Better], ...] = (
    ("vs_dataset_split", 1.4, "higher"),
    ("vs_ideal", 0.9, "higher"),
    ("overhead_when_cheap", 1.02, "lower"),
)


def judge(measured: harness.Rounds, moved: str, looked_at: tuple[harness.Rounds, dict[str, Any]]) -> report.Result:
    costs, told = looked_at
    cpu = measured.part("cpu_s")
    ideal = [min(pair) for pair in zip(measured.figures[LINEAR], measured.figures[FAKE], strict=True)]
    of_ideal = harness.spread([ours / best for ours, best in zip(measured.figures[OURS], ideal, strict=True)])
    overhead = costs.ratio("auto", "off") if not told["wanted"] else None
    values: tuple[harness.Ratio | None, ...] = (measured.ratio(OURS, DATASET), of_ideal, overhead)
    why = f"the tuner wanted {told['wanted']} data workers: {told['why']}" if overhead is None else ""
    goals = tuple(
        report.goal(id, value, target=target, better=better, why="" if value is not None else why)
        for (id, target, better), value in zip(GOALS, values, strict=True)
    )
    rows: list[report.Cells] = [
        (way, 1e3 / measured.median(way), 1e3 * cpu.median(way) if way in cpu.figures else None)
        for way in measured.figures
    ]
    rows += [(f"cheap, data workers {way}, blocked time too", None, 1e3 * costs.median(way)) for way in costs.figures]
    return report.Result(
        goals=goals,
        rounds=measured.count,
        columns=("way", "ms a step", "trainer's CPU ms a step"),
        rows=tuple(rows),
        notes=(
            f"batch {SIZES['batch']}; the split: {moved}",
            f"a step takes {1 / measured.ratio(OURS, INSIDE).value:.2f} of its time in process; "
            f"the tuner decided {told['decisions']} times: {told['why']}",
        ),
    )
