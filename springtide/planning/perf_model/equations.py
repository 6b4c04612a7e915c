"""Pure. Performance model of a job: step time and throughput as functions of its shape (DLRover-RM, Eqns 1-6)."""

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
"""Approximate number of seconds that one message between workers takes, without the time for its bytes. The value only
scales a fitted coefficient.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Fitted coefficients of a job, all non-negative."""

    grad: float
    """Core-seconds for forward and backward of one sample."""
    upd: float
    """Core-seconds in which servers apply one worker's gradients; in bsp mode, the gradients of all workers."""
    sync: float
    """How often the dense parameters cross the network in a step; in bsp mode, the number of all-reduces."""
    emb: float
    """Seconds that one server takes to look up one float."""
    beta: float
    """Constant seconds of a step: the sum of the four constants."""

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if not 0 <= number < numpy.inf:
                raise errors.BadInput(f"coefficient {field.name} {number!r}; expected a number, 0 or more")

    @property
    def array(self) -> Array:
        return numpy.array([self.grad, self.upd, self.sync, self.emb, self.beta])


class Models(NamedTuple):
    """`Coefficients` and `ModelFacts` of many jobs. Each field is an array, with one value per job or per shape."""

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


class StepTerms(NamedTuple):
    """Seconds of a step, divided by cause. The fields are numbers for one shape, and arrays for many shapes."""

    gradient: Array | float
    update: Array | float
    synchronization: Array | float
    lookup: Array | float
    constant: float


Facts = ModelFacts | Models


def step_columns(facts: Facts, shape: Shape | Shapes, batch: Any = None) -> tuple[Any, ...]:
    """Return the factor of each coefficient in T, the duration of a step in seconds. `facts` may hold arrays.

    T = grad * m / worker_cpu  +  upd * w / (p * server_cpu)  +  sync * (M / p) / (B / w)  +  emb * m * D / p  +  beta
    throughput = w * m / T

    Here w is the number of workers, p the number of servers, m the samples per step of one worker (`batch`), M the
    dense bytes, B the bandwidth, and D the floats that one sample looks up. In bsp, all workers together train G
    samples in one step, whatever their number. Measured steps include the wait for the slowest worker. A step takes as
    long as its slowest worker, plus an all-reduce of the dense parameters:

    T = grad * (G / w) / worker_cpu  +  upd / (p * server_cpu)  +  sync * hops(w)  +  emb * (G / w) * D / p  +  beta
    throughput = G / T
    """
    w: Any = shape.workers
    p: Any = shape.servers
    traffic_s: Any = facts.dense_bytes / facts.bandwidth
    m = facts.batch if batch is None else batch
    updates, sent = w / (p * shape.server_cpu), traffic_s * w / p
    if isinstance(facts.group, numpy.ndarray):
        if facts.group.any():
            bsp = facts.group > 0
            m, updates = numpy.where(bsp, facts.group / w, m), numpy.where(bsp, 1 / (p * shape.server_cpu), updates)
            sent = numpy.where(bsp, hops(w, traffic_s), sent)
    elif facts.group:
        m, updates, sent = facts.group / w, 1 / (p * shape.server_cpu), hops(w, traffic_s)
    one = numpy.ones_like(p) if isinstance(p, numpy.ndarray) else 1.0
    return m / shape.worker_cpu, updates, sent, m * facts.dim / p, one


def terms(coefficients: Coefficients, facts: ModelFacts, shape: Shape | Shapes) -> StepTerms:
    """Return the terms of Eqns 2 to 5 without their constants, and then the sum of the constants."""
    grad, upd, sync, emb, _ = step_columns(facts, shape)
    return StepTerms(
        coefficients.grad * grad,
        coefficients.upd * upd,
        coefficients.sync * sync,
        coefficients.emb * emb,
        coefficients.beta,
    )


def hops(workers: Array, traffic_s: Array | float) -> Array:
    """Return the seconds of a ring all-reduce. `traffic_s` is the time in which the data crosses the network once."""
    return 2 * (workers - 1) * (traffic_s / workers + HOP_S)


def step_seconds(coefficients: Coefficients, facts: ModelFacts, shape: Shape | Shapes) -> Array | float:
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
    parts = zip(models[:5], step_columns(models, many), strict=True)
    seconds: Array = numpy.asarray(sum(by * column for by, column in parts))
    samples = numpy.where(models.group > 0, models.group, many.workers * models.batch)
    return numpy.divide(samples, seconds, out=numpy.zeros_like(seconds), where=seconds > 0)
