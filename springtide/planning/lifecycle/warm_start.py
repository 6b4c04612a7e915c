"""Pure. Chooses the first shape of a new job: the shape of similar jobs (Algorithm 1), or a small shape to measure.

The k most similar past jobs are smoothed, least similar first: A = mu * A_i + (1 - mu) * A. A backtest on the history
chooses the feature weights, k and mu.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from springtide.domain.core.shape import MemoryNeed, Shape
from springtide.domain.plan.view import JobView, PastJob
from springtide.domain.spec.planning_config import Feature, PlanningConfig
from springtide.planning.candidates import clamp

Floats = NDArray[np.float64]
NEWEST = 160
"""Most past jobs to use, newest first."""
BACKTESTED = 64
"""Number of newest past jobs that the backtest predicts, each from the jobs before it."""
FEWEST = 8
"""Fewest past jobs to learn from. With fewer jobs, k and mu have their default values."""
USUAL_SIMILAR, USUAL_SMOOTHING = 3, 0.7
SIMILARS = (1, 2, 3, 5, 8)
SMOOTHINGS = (0.3, 0.5, 0.7, 0.9)
ALIKE = 0.5
"""A past job is used only if its expected closeness exceeds this value."""
UNKNOWN = 2.0
"""If similar jobs' memory needs are unknown, servers start with this many times the similar jobs' final memory."""
COMPARED = 4
"""How many of a configuration's numbers (`_row`), from the first on, define closeness: roles and cores. The other
numbers only predict memory."""
USER = "user"


LEAST_WEIGHT = 0.05
"""The features share at least this part of all weight, so that every feature can break ties."""


def usable(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the informative features: non-empty words and finite numbers."""
    kept: dict[str, Feature] = {}
    for name, value in features.items():
        if isinstance(value, str):
            if value:
                kept[name] = value
        elif isinstance(value, int | float) and math.isfinite(value):
            kept[name] = float(value)
    return kept


class FeatureColumn(NamedTuple):
    """The values of one feature for several jobs. Each job has a word (or an empty string) and a number (or NaN)."""

    words: NDArray[np.str_]
    numbers: Floats

    def part(self, some: slice) -> "FeatureColumn":
        return FeatureColumn(self.words[some], self.numbers[some])

    @property
    def known(self) -> bool:
        return bool((self.words != "").any() or not np.isnan(self.numbers).all())


def feature_columns(jobs: Sequence[Mapping[str, Feature]]) -> dict[str, FeatureColumn]:
    found = {}
    for name in sorted({name for job in jobs for name in job}):
        values = [job.get(name, math.nan) for job in jobs]
        words = np.array([value if isinstance(value, str) else "" for value in values])
        numbers = np.array([math.nan if isinstance(value, str) else float(value) for value in values])
        found[name] = FeatureColumn(words, numbers)
    return found


def between(
    ones: Mapping[str, FeatureColumn], others: Mapping[str, FeatureColumn], count: tuple[int, int]
) -> dict[str, Floats]:
    """Return, for each feature, the similarity of each job in `ones` to each job in `others`. `count` has the number
    of jobs on each side.

    The similarity of two words is 1 if they are equal. The similarity of two numbers is the ratio of the smaller to
    the larger. A missing feature, or a word against a number, has similarity 0.
    """
    return {
        name: _alike(ones[name], others[name]) if name in ones and name in others else np.zeros(count)
        for name in sorted({*ones, *others})
    }


def _alike(one: FeatureColumn, other: FeatureColumn) -> Floats:
    same = (one.words[:, None] == other.words) & (one.words[:, None] != "")
    left, right = one.numbers[:, None], other.numbers[None, :]
    larger = np.maximum(np.abs(left), np.abs(right))
    near = 1.0 - np.divide(np.abs(left - right), larger, out=np.zeros_like(larger), where=larger > 0)
    return np.where(same, 1.0, np.where(np.isfinite(larger), np.clip(near, 0.0, 1.0), 0.0))


class DistanceModel(msgspec.Struct, frozen=True, kw_only=True):
    """Linear model that predicts the distance of two jobs from their distances in each feature."""

    weights: Mapping[str, float]
    chance: float
    """Expected distance between two jobs that are alike in all features."""

    def apart(self, parts: Mapping[str, Floats]) -> Floats:
        """Return the expected distance of each pair. For a feature that was not learned, the smallest weight is
        used."""
        usual = min(self.weights.values())
        apart = sum(self.weights.get(name, usual) * (1.0 - part) for name, part in parts.items())
        return np.asarray(self.chance + apart)


def learn_distance(parts: Mapping[str, Floats], apart: Floats, pairs: NDArray[np.bool_]) -> DistanceModel:
    """Learn the weight of each feature from the selected pairs by non-negative least squares, which gives a redundant
    feature almost no weight.
    """
    from scipy import optimize

    known = np.stack([1.0 - part[pairs] for part in parts.values()], axis=1)
    found = optimize.nnls(np.hstack([known, np.ones((len(known), 1))]), apart[pairs])[0]
    least = LEAST_WEIGHT * max(float(found[:-1].sum()), LEAST_WEIGHT) / len(parts)
    weights = {name: max(least, float(weight)) for name, weight in zip(parts, found, strict=False)}
    return DistanceModel(weights=weights, chance=float(found[-1]))


class WarmStart(msgspec.Struct, frozen=True, kw_only=True):
    """First shape of a job, with the reason."""

    shape: Shape
    why: str
    warm: bool
    notes: tuple[str, ...] = ()


class Lesson(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters that a backtest on the history has chosen."""

    similar: int
    smoothing: float
    telling: DistanceModel | None
    """Model that predicts the distance between configurations from features; None if the history is too short."""
    among: dict[str, Floats]
    """Similarities among the newest past jobs, by feature."""
    accuracy: float
    """Mean closeness of the backtest's predictions to the final configurations; NaN if the history is too short."""

    def closeness(self, parts: dict[str, Floats]) -> Floats:
        """Return how close each past job's configuration is to the new job's configuration: as the learned model
        predicts it, or by plain similarity.
        """
        if self.telling is None:
            return np.asarray(np.mean([part[0] for part in parts.values()], axis=0))
        return np.asarray(np.clip(1.0 - self.telling.apart(parts)[0], 0.0, 1.0))


class KnownHistory(NamedTuple):
    """History and the parameters learned from it, shared by all jobs that start with it."""

    past: list[PastJob]
    notes: tuple[str, ...]
    features: dict[str, FeatureColumn]
    lesson: Lesson
    needs: DistanceModel | None


class SameHistory:
    """Cache key of a history, by object identity of its jobs. Comparing identities takes microseconds."""

    def __init__(self, jobs: Sequence[PastJob]) -> None:
        self.jobs = tuple(jobs)
        self._ids = tuple(map(id, self.jobs))

    def __hash__(self) -> int:
        return hash(self._ids)

    def __eq__(self, other: object) -> bool:
        # both objects hold references to their jobs, so ids are not reused
        return isinstance(other, SameHistory) and self._ids == other._ids


@functools.lru_cache(maxsize=4)
def known(history: SameHistory, similar: int | None, smoothing: float | None) -> KnownHistory:
    """Learn from a history once, for all jobs that start before the history changes."""
    past, notes = sound(history.jobs)
    features = feature_columns([usable({USER: job.user, **job.features}) for job in past])
    lesson = learn(past, features, similar, smoothing)
    return KnownHistory(past, notes, features, lesson, learn_needs(past, lesson.among))


def start(job: JobView, history: Sequence[PastJob], config: PlanningConfig) -> WarmStart:
    past, notes, features, lesson, needs = known(SameHistory(history[-NEWEST:]), config.similar, config.smoothing)
    if not past:
        return cold(job, config, "there is no history", notes)
    if not features:
        return cold(job, config, "no past job has a feature to compare", notes)
    mine = feature_columns([usable({USER: job.identity.user, **job.identity.features})])
    if not mine:
        return cold(job, config, "it has no feature to compare", notes)
    # leave out features that the new job lacks, because they are known only after a run
    shared = {name: feature for name, feature in features.items() if name in mine}
    parts = between(mine, shared, (1, len(past)))
    alike = lesson.closeness(parts)
    # among equally similar jobs, the newest comes first
    order = np.argsort(alike, kind="stable")[::-1][: lesson.similar]
    near = [int(at) for at in order if alike[at] > ALIKE]
    if not near:
        return cold(job, config, f"no past job is similar (at best {alike.max():.0%})", notes)
    shape = _shape(smooth(np.array([_row(past[at].shape) for at in near]), lesson.smoothing))
    needed = predict_need(past, parts, needs)
    if needed is None:
        shape = replace(shape, server_memory=round(UNKNOWN * shape.server_memory))
    elif shape.server_memory:
        shape = replace(shape, worker_memory=needed.worker, server_memory=needed.of_server(shape.servers))
    shape = clamp.within(shape, job.bounds, config, need=job.need)
    right = f", {lesson.accuracy:.0%} right in backtest" if math.isfinite(lesson.accuracy) else ""
    why = (
        f"warm start from {len(near)} similar job{'s' if len(near) > 1 else ''}, most like {past[near[0]].name} "
        f"({alike[near[0]]:.0%}); k={lesson.similar}, mu={lesson.smoothing:g}{right}"
    )
    return WarmStart(shape=shape, why=why, warm=True, notes=notes)


def smooth(rows: Floats, smoothing: float) -> Floats:
    """Smooth rows by Eqn 10. The most similar row comes first, and the rows enter the formula in reverse order."""
    result = rows[-1]
    for row in rows[-2::-1]:
        result = smoothing * row + (1 - smoothing) * result
    return np.asarray(result)


def cold(job: JobView, config: PlanningConfig, because: str, notes: tuple[str, ...] = ()) -> WarmStart:
    """Return DLRover's initial shape for sampling: one worker and one server, both with so many cores that cores do not
    limit the measurement. In the paper, the worker and the server each get a whole node. But larger pods wait longer
    for a node, so the paper limits servers to 16 cores. Here, the worker and the server therefore start with
    `server_cpu` cores each.
    """
    asked, cores = job.requested, min(config.server_cpu, config.node_cpu)
    small = Shape(
        workers=1,
        servers=1,
        worker_cpu=cores,
        server_cpu=cores,
        worker_memory=asked.worker_memory if asked else 0,
        # the single server of this shape holds all rows
        server_memory=asked.servers * asked.server_memory if asked else 0,
    )
    shape = clamp.within(small, job.bounds, config, need=job.need)
    return WarmStart(shape=shape, why=f"small start for measurements: {because}", warm=False, notes=notes)


def sound(history: Sequence[PastJob]) -> tuple[list[PastJob], tuple[str, ...]]:
    """Return the usable past jobs, oldest first, and notes about the jobs that are not usable."""
    good, bad, unfinished = [], 0, 0
    for job in history:
        if job.shape is None or not math.isfinite(job.shape.cpu + job.shape.memory + job.ended_at):
            bad += 1
        elif not job.finished:
            unfinished += 1
        else:
            good.append(job)
    notes = []
    if bad:
        notes.append(f"history: {bad} of {len(history)} jobs skipped, because their records are invalid")
    if unfinished:
        notes.append(f"history: {unfinished} of {len(history)} jobs skipped, because they did not finish")
    return sorted(good, key=lambda job: job.ended_at), tuple(notes)


def learn(
    past: Sequence[PastJob], features: Mapping[str, FeatureColumn], similar: int | None, smoothing: float | None
) -> Lesson:
    """Choose the feature weights, k and mu with which earlier jobs predict the newest jobs best."""
    recent = past[-BACKTESTED:]
    newest = {name: feature.part(slice(-BACKTESTED, None)) for name, feature in features.items()}
    newest = {name: job for name, job in newest.items() if job.known}
    if len(recent) < FEWEST or not newest:
        return Lesson(
            similar=similar or USUAL_SIMILAR,
            smoothing=smoothing or USUAL_SMOOTHING,
            telling=None,
            among={},
            accuracy=math.nan,
        )
    finals = np.array([_row(job.shape)[:COMPARED] for job in recent])
    parts = between(newest, newest, (len(recent), len(recent)))
    older = np.tri(len(recent), k=-1, dtype=bool)
    telling = learn_distance(parts, 1.0 - closeness(finals[:, None, :], finals[None, :, :]), older)
    alike = np.where(older, -telling.apart(parts), -np.inf)
    ranked = np.argsort(alike, axis=1, kind="stable")[:, ::-1]
    # test only the second half, because the first half has too few earlier jobs
    tested = np.arange(len(recent) // 2, len(recent))
    best = (-1.0, USUAL_SIMILAR, USUAL_SMOOTHING)
    for count in (similar,) if similar else SIMILARS:
        rows = finals[ranked[tested][:, : min(count, int(tested[0]))]]  # shape: [tested, k, field]
        for weight in (smoothing,) if smoothing else SMOOTHINGS:
            foretold = smooth(np.moveaxis(rows, 1, 0), weight)
            right = float(closeness(foretold, finals[tested]).mean())
            if right > best[0] + 1e-6:
                best = (right, count, weight)
    return Lesson(similar=best[1], smoothing=best[2], telling=telling, among=parts, accuracy=best[0])


def closeness(ones: Floats, others: Floats) -> Floats:
    """Return the mean ratio of the smaller to the larger value over the fields; 1 means equal."""
    larger = np.maximum(ones, others)
    parts = np.divide(np.minimum(ones, others), larger, out=np.ones_like(larger), where=larger > 0)
    return np.asarray(parts.mean(axis=-1))


def _row(shape: Shape | None) -> Floats:
    """Return a configuration as numbers that can be averaged: role counts, and totals per kind of role.

    Sizes per role are not averaged. Few large roles can have the same total as many small roles, but the product of
    the mean count and the mean size would exceed it.
    """
    assert shape is not None
    return np.array(
        [
            shape.workers,
            shape.servers,
            shape.workers * shape.worker_cpu,
            shape.servers * shape.server_cpu,
            shape.worker_memory,
            shape.servers * shape.server_memory,
        ],
        dtype=float,
    )


def _shape(row: Floats) -> Shape:
    workers, servers, worker_cpus, server_cpus, worker_memory, server_memories = (float(part) for part in row)
    count, serving = max(1, round(workers)), max(1, round(servers))
    return Shape(
        workers=count,
        servers=serving,
        worker_cpu=worker_cpus / count,
        server_cpu=server_cpus / serving,
        worker_memory=math.ceil(worker_memory),
        server_memory=math.ceil(server_memories / serving),
    )


FEWEST_NEEDS = 8
"""Fewest past jobs with known needs to learn from. With fewer jobs, the largest known need counts."""
ABOUT = 0.25
"""Past jobs are of one kind if their needs differ by at most this many doublings more than by chance."""
STRANGERS = 48
"""Number of nearest past jobs that count for a job of unknown kind. If fewer jobs counted, all of them might by chance
have needed less memory than the new job.
"""
ROW_MARGIN = 1.25
"""Margin that is added to the prediction, because two runs of one job differ in their data."""


def predict_need(
    past: Sequence[PastJob], to_new: Mapping[str, Floats], model: DistanceModel | None
) -> MemoryNeed | None:
    """Predict the memory need of a new job; None if no needs are known.

    `to_new` has the similarities of each past job to the new job, by feature, in the shape [1, past]. `told`: the
    model that predicts needs from features.
    """
    known, rows = _needs(past)
    if not known.any():
        return None
    near, more = known, 1.0
    if model is not None:
        apart = np.where(known, model.apart(to_new)[0], np.inf)
        near = apart <= apart.min() + ABOUT
        more = 2.0**model.chance
        if apart.min() > model.chance + ABOUT:
            near = known & (apart <= np.sort(apart)[min(STRANGERS, int(known.sum())) - 1])
    some = [job.need for job, counts in zip(past, near.tolist(), strict=True) if counts]
    return MemoryNeed(
        worker=max(need.worker for need in some),
        server=max(need.server for need in some),
        rows=round(ROW_MARGIN * more * float(rows[near].max())),
    )


def _needs(past: Sequence[PastJob]) -> tuple[NDArray[np.bool_], Floats]:
    known = np.array([job.need.rows > 0 for job in past], dtype=bool)
    return known, np.array([max(float(job.need.rows), 1.0) for job in past])


def learn_needs(past: Sequence[PastJob], among: Mapping[str, Floats]) -> DistanceModel | None:
    """Learn how the needs of jobs differ, in doublings, depending on features. `among` has the similarities among past
    jobs, in the shape [past, past]."""
    known, rows = _needs(past)
    if not among or int(known.sum()) < FEWEST_NEEDS:
        return None
    newest = next(iter(among.values())).shape[0]
    some, logs = known[-newest:], np.log2(rows[-newest:])
    pairs = np.tri(newest, k=-1, dtype=bool) & some[:, None] & some[None, :]
    if not pairs.any():
        return None
    return learn_distance(among, np.abs(logs[:, None] - logs[None, :]), pairs)
