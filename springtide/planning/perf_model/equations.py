"""Pure. Performance model of a job: step time and throughput as functions of its shape (DLRover-RM, Eqns 1-6).

In: `Coefficients` (fitted by `planning.perf_model.fit`, or true values in a simulation), `ModelFacts`, and one `Shape`
or many as arrays (`Shapes`). Next: `planning.candidates.pareto` searches for the shapes worth having.

    T = grad * m / worker_cpu  +  upd * w / (p * server_cpu)  +  sync * (M / p) / (B / w)  +  emb * m * D / p  +  beta
    throughput = w * m / T

Here w is workers, p servers, m samples per step of one worker, M dense bytes, B bandwidth, and D floats that one sample
looks up.

In bsp, one step of all workers together has G samples, for any number of workers. A step takes as long as its slowest
worker, plus an all-reduce of the dense parameters. Measured steps already include the wait for the slowest worker:

    T = grad * (G / w) / worker_cpu  +  upd / (p * server_cpu)  +  sync * hops(w)  +  emb * (G / w) * D / p  +  beta
    throughput = G / T         hops(w) = 2 (w - 1) / w * M / B  +  2 (w - 1) * HOP_S: a ring, and its messages

With more workers, each has fewer samples but more communication. Beyond some number, more workers bring nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, overload

import numpy
import numpy.typing

from springtide import errors
from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import ModelFacts

Array = numpy.typing.NDArray[numpy.float64]
Index = numpy.typing.NDArray[Any]
"""Indices into an array, or a mask."""
TERMS = ("grad", "upd", "sync", "emb", "beta")
HOP_S = 1e-4
"""Approximate seconds of one message between workers, besides its bytes. It only scales a fitted coefficient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Fitted coefficients of a job, all non-negative."""

    grad: float
    """Core-seconds per sample of forward and backward."""
    upd: float
    """Core-seconds of servers for one worker's gradients; in bsp, for all workers' gradients."""
    sync: float
    """Times that the dense parameters cross the network; in bsp, number of all-reduces."""
    emb: float
    """Seconds that one server takes to look up one float."""
    beta: float
    """Constant seconds of a step: the sum of the four constants."""

    def __post_init__(self) -> None:
        for each in fields(self):
            number = getattr(self, each.name)
            if not 0 <= number < numpy.inf:
                raise errors.BadInput(f"coefficient {each.name} {number!r}; wanted a number, 0 or more")

    @property
    def array(self) -> Array:
        return numpy.array([self.grad, self.upd, self.sync, self.emb, self.beta])


class Models(NamedTuple):
    """Models of many jobs: coefficients and facts as columns, one row per shape."""

    grad: Array
    upd: Array
    sync: Array
    emb: Array
    beta: Array
    dense_bytes: Array
    bandwidth: Array
    dim: Array
    batch: Array
    group: Array


class Shapes(NamedTuple):
    """Shape fields that the equations use, for one or many shapes."""

    workers: Array
    servers: Array
    worker_cpu: Array
    server_cpu: Array


def shapes(many: Iterable[Shape]) -> Shapes:
    listed = [(one.workers, one.servers, one.worker_cpu, one.server_cpu) for one in many]
    return Shapes(*numpy.array(listed, dtype=numpy.float64).reshape(-1, 4).T)


class StepTerms(NamedTuple):
    """Seconds of a step by cause: numbers for one shape, arrays for many."""

    gradient: Array | float
    update: Array | float
    synchronization: Array | float
    lookup: Array | float
    constant: float


def terms(coefficients: Coefficients, facts: ModelFacts, shape: Shape | Shapes) -> StepTerms:
    """Return the terms of Eqns 2 to 5 without their constants, then the sum of the constants."""
    w, p = shape.workers, shape.servers
    if facts.group:
        return StepTerms(
            gradient=coefficients.grad * facts.group / w / shape.worker_cpu,
            update=coefficients.upd / (p * shape.server_cpu),
            synchronization=coefficients.sync * hops(w, facts.dense_bytes / facts.bandwidth),
            lookup=coefficients.emb * facts.group / w * facts.dim / p,
            constant=coefficients.beta,
        )
    return StepTerms(
        gradient=coefficients.grad * facts.batch / shape.worker_cpu,
        update=coefficients.upd * w / (p * shape.server_cpu),
        synchronization=coefficients.sync * facts.dense_bytes / facts.bandwidth * w / p,
        lookup=coefficients.emb * facts.batch * facts.dim / p,
        constant=coefficients.beta,
    )


@overload
def hops(workers: float, traffic_s: float) -> float: ...
@overload
def hops(workers: Array, traffic_s: Array | float) -> Array: ...
def hops(workers: Array | float, traffic_s: Array | float) -> Array | float:
    """Return the seconds of an all-reduce among `workers`, for data that crosses the network once in `traffic_s`."""
    return 2 * (workers - 1) * (traffic_s / workers + HOP_S)


@overload
def step_seconds(coefficients: Coefficients, facts: ModelFacts, shape: Shape) -> float: ...
@overload
def step_seconds(coefficients: Coefficients, facts: ModelFacts, shape: Shapes) -> Array: ...
def step_seconds(coefficients: Coefficients, facts: ModelFacts, shape: Shape | Shapes) -> Array | float:
    """Return T, the seconds per step of one worker."""
    return sum(terms(coefficients, facts, shape))


@overload
def throughput(coefficients: Coefficients, facts: ModelFacts, shape: Shape) -> float: ...
@overload
def throughput(coefficients: Coefficients, facts: ModelFacts, shape: Shapes) -> Array: ...
def throughput(coefficients: Coefficients, facts: ModelFacts, shape: Shape | Shapes) -> Array | float:
    """Return the samples per second of all workers (Eqn 1); 0 if a step takes no time."""
    seconds = step_seconds(coefficients, facts, shape)
    samples = facts.group or shape.workers * facts.batch
    if isinstance(seconds, numpy.ndarray):
        return numpy.divide(samples, seconds, out=numpy.zeros_like(seconds), where=seconds > 0)
    return samples / seconds if seconds > 0 else 0.0


def throughputs(models: Models, many: Shapes) -> Array:
    """Return the throughput of shapes that each have their own model."""
    w, p = many.workers, many.servers
    together = models.group > 0
    if together.any():
        return numpy.where(together, _in_step(models, many), throughputs(models._replace(group=0 * w), many))
    seconds = (
        models.grad * models.batch / many.worker_cpu
        + models.upd * w / (p * many.server_cpu)
        + models.sync * models.dense_bytes / models.bandwidth * w / p
        + models.emb * models.batch * models.dim / p
        + models.beta
    )
    return numpy.divide(w * models.batch, seconds, out=numpy.zeros_like(seconds), where=seconds > 0)


def _in_step(models: Models, many: Shapes) -> Array:
    w, p = many.workers, many.servers
    part = models.group / w
    seconds = (
        models.grad * part / many.worker_cpu
        + models.upd / (p * many.server_cpu)
        + models.sync * hops(w, models.dense_bytes / models.bandwidth)
        + models.emb * part * models.dim / p
        + models.beta
    )
    return numpy.divide(models.group, seconds, out=numpy.zeros_like(seconds), where=seconds > 0)


def design(facts: ModelFacts, many: Shapes, batches: Sequence[int] | Array | None = None) -> Array:
    """Return the design matrix: one row per shape, one column per coefficient. T is its product with the
    coefficients."""
    w, p = many.workers, many.servers
    m = numpy.asarray(facts.batch if batches is None else batches, dtype=numpy.float64)
    traffic = facts.dense_bytes / facts.bandwidth
    if facts.group:
        part = facts.group / w
        in_step = (part / many.worker_cpu, 1 / (p * many.server_cpu), hops(w, traffic), part * facts.dim / p)
        return numpy.stack((*in_step, numpy.ones_like(p)), axis=-1)
    columns = (
        m / many.worker_cpu,
        w / (p * many.server_cpu),
        traffic * w / p,
        m * facts.dim / p,
        numpy.ones_like(p),
    )
    return numpy.stack(columns, axis=-1)
