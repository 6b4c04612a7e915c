"""Pure. Shape of a job (number and size of its roles), the bounds on it, and its cost."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields

from springtide import errors
from springtide.domain.core import resources, validation

GIB = 1 << 30
UNKNOWN_GPUS = float(1 << 20)
"""Number of GPUs to assume for a cluster that does not report the number; finite, because JSON has no infinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Number and size of the workers and servers of one job."""

    workers: int
    servers: int
    worker_cpu: float
    server_cpu: float
    worker_memory: int = 0
    """Bytes of memory of each worker; 0 means no limit and no cost."""
    server_memory: int = 0
    worker_gpu: float = 0.0
    """GPU of each worker: 1, or a share of one GPU. All shapes of a job have the same value."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 1:
            raise errors.BadInput(
                f"shape: {self.workers} workers and {self.servers} servers; a job needs at least one of each"
            )
        if not 0 < self.worker_cpu < math.inf or not 0 < self.server_cpu < math.inf:
            raise errors.BadInput(f"shape: {self.worker_cpu:g} and {self.server_cpu:g} cores; each must be above 0")
        if not 0 <= self.worker_memory < math.inf or not 0 <= self.server_memory < math.inf:
            raise errors.BadInput(f"shape: {self.worker_memory} and {self.server_memory} bytes; each must be 0 or more")
        if not 0 <= self.worker_gpu <= 1:
            raise errors.BadInput(f"shape: {self.worker_gpu:g} GPU for each worker; expected 0 to 1")

    @property
    def cpu(self) -> float:
        return self.workers * self.worker_cpu + self.servers * self.server_cpu

    @property
    def memory(self) -> int:
        return self.workers * self.worker_memory + self.servers * self.server_memory

    @property
    def gpus(self) -> int:
        return resources.gpus_for(self.workers, self.worker_gpu)

    def __str__(self) -> str:
        workers = _part(self.workers, "worker", self.worker_cpu, self.worker_memory, self.worker_gpu)
        return f"{workers}, {_part(self.servers, 'server', self.server_cpu, self.server_memory)}"


FIELDS = tuple(field.name for field in fields(Shape))


def _part(count: int, role: str, cpu: float, memory: int, gpu: float = 0.0) -> str:
    held = f", {resources.show_memory(memory)}" if memory else ""
    card = f", {gpu:g} GPU" if gpu else ""
    return f"{count} {role}{'' if count == 1 else 's'} ({cpu:g} CPU{held}{card})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceBudget:
    """CPU, memory and GPUs that a cluster or a quota provides."""

    cpu: float
    memory: float
    gpu: float = UNKNOWN_GPUS

    def __post_init__(self) -> None:
        # `not all` instead of `any`, because a comparison with NaN is always false
        if not all(amount >= 0 for amount in self.amounts):
            raise errors.BadInput(
                f"capacity: {self.cpu:g} cores, {self.memory:g} bytes and {self.gpu:g} GPUs; none may be below 0"
            )

    @property
    def amounts(self) -> tuple[float, float, float]:
        return self.cpu, self.memory, self.gpu

    def fits(self, cpu: float, memory: float, gpu: float = 0.0) -> bool:
        return (
            cpu <= self.cpu * (1 + ROUNDING)
            and memory <= self.memory * (1 + ROUNDING)
            and gpu <= self.gpu * (1 + ROUNDING)
        )

    def holds(self, shape: Shape) -> bool:
        return self.fits(shape.cpu, shape.memory, shape.gpus)

    def exceeds(self, other: "ResourceBudget") -> bool:
        """Return True if this budget exceeds `other` in any resource."""
        return self.cpu > other.cpu or self.memory > other.memory or self.gpu > other.gpu

    def joined(self, other: "ResourceBudget", choose: Callable[[float, float], float]) -> "ResourceBudget":
        """Combine two budgets: `choose` (such as `max`) selects the amount of each resource."""
        cpu, memory, gpu = map(choose, self.amounts, other.amounts)
        return ResourceBudget(cpu=cpu, memory=memory, gpu=gpu)

    def __add__(self, other: "ResourceBudget") -> "ResourceBudget":
        return self.joined(other, operator.add)

    def __sub__(self, other: "ResourceBudget") -> "ResourceBudget":
        """Subtract a budget from this budget; each resource of the result is at least 0."""
        return self.joined(other, lambda here, there: max(0.0, here - there))

    def describe(self) -> str:
        gpus = f" and {self.gpu:g} GPUs" if 0 < self.gpu < UNKNOWN_GPUS else ""
        return f"{self.cpu:,.5g} cores and {self.memory / GIB:,.5g} GiB{gpus}"


def resources_of(shape: Shape | None) -> ResourceBudget:
    return NOTHING if shape is None else ResourceBudget(cpu=shape.cpu, memory=shape.memory, gpu=shape.gpus)


ROUNDING = 1e-9
"""Relative tolerance when a sum of fractional cores is compared with a limit."""
UNBOUNDED = ResourceBudget(cpu=math.inf, memory=math.inf)
NOTHING = ResourceBudget(cpu=0.0, memory=0.0, gpu=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeBounds:
    """Smallest and largest allowed value of each shape field, and the quota of the whole job."""

    least: Shape
    most: Shape
    quota: ResourceBudget = UNBOUNDED
    """Limit on the resources of all workers and servers together."""
    worker_step: int | None = None
    """Step between two worker counts. None means every count up to 16, then steps of about an eighth: 18, 20... 32,
    36..."""
    server_step: int | None = None
    cpu_step: float | None = None
    """Step in cores between two sizes of a role. None means powers of two and the midpoints between them."""

    def __post_init__(self) -> None:
        for name in FIELDS:
            least, most = getattr(self.least, name), getattr(self.most, name)
            if least > most:
                raise errors.BadInput(f"bounds: {name} from {least:g} to {most:g}; the least is above the most")
        validation.check_range(self, "worker_step", "server_step", least=1, of="bounds: ")
        validation.check_range(self, "cpu_step", above=0, unit="cores", of="bounds: ")
        if not self.quota.holds(self.least):
            raise errors.BadInput(
                f"bounds: the least shape ({self.least}) takes more than the quota, {self.quota.describe()}; raise the "
                "quota or lower the least"
            )

    def holds(self, shape: Shape) -> bool:
        """Return True if the shape is within all bounds. Sizes between two steps are allowed."""
        least, most = self.least, self.most
        inside = (
            least.workers <= shape.workers <= most.workers
            and least.servers <= shape.servers <= most.servers
            and least.worker_cpu <= shape.worker_cpu <= most.worker_cpu
            and least.server_cpu <= shape.server_cpu <= most.server_cpu
            and least.worker_memory <= shape.worker_memory <= most.worker_memory
            and least.server_memory <= shape.server_memory <= most.server_memory
            and least.worker_gpu <= shape.worker_gpu <= most.worker_gpu
        )
        return inside and self.quota.holds(shape)

    @property
    def workers(self) -> tuple[int, ...]:
        return counts(self.least.workers, self.most.workers, self.worker_step)

    @property
    def servers(self) -> tuple[int, ...]:
        return counts(self.least.servers, self.most.servers, self.server_step)

    @property
    def worker_cpus(self) -> tuple[float, ...]:
        return sizes(self.least.worker_cpu, self.most.worker_cpu, self.cpu_step)

    @property
    def server_cpus(self) -> tuple[float, ...]:
        return sizes(self.least.server_cpu, self.most.server_cpu, self.cpu_step)


def counts(least: int, most: int, step: int | None) -> tuple[int, ...]:
    """Return counts from `least` to `most`, inclusive, in equal steps or in growing steps."""
    found, count = {least, most}, least
    while count < most:
        found.add(count)
        count += step or max(1, 1 << max(0, count.bit_length() - 4))
    return tuple(sorted(found))


def sizes(least: float, most: float, step: float | None) -> tuple[float, ...]:
    """Return sizes in cores from `least` to `most`, inclusive, in equal steps or as powers of two and midpoints."""
    if step is not None:
        count = math.floor((most - least) / step * (1 + ROUNDING))
        between = [round(least + index * step, 9) for index in range(count + 1)]
    else:
        powers = range(math.floor(math.log2(least)), math.ceil(math.log2(most)) + 1)
        between = [part * 2.0**power for power in powers for part in (1.0, 1.5)]
    return tuple(sorted({least, most, *(size for size in between if least < size < most)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that the roles of a job need. More memory makes no step faster, so a plan grants just enough."""

    worker: int = 0
    server: int = 0
    """Bytes of each server, not counting rows."""
    rows: int = 0
    """Bytes of all rows together, with room for growth. The servers share these bytes."""

    def __post_init__(self) -> None:
        validation.check_range(self, "worker", "server", "rows", least=0, unit="bytes", of="memory need: ")

    def of_server(self, servers: int) -> int:
        return self.server + -(-self.rows // servers)


NO_NEED = MemoryNeed()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Hourly prices of CPU, memory and GPUs, in any currency. Only the ratio of prices affects a choice."""

    cpu: float = 1.0
    memory: float = 0.125
    """Hourly price of one GiB of memory. On public clouds this is about an eighth of a core's price."""

    gpu: float = 50.0
    """Hourly price of one GPU. On public clouds, a GPU for training costs as much as 20 (T4, L4) to 150 cores
    (H100)."""

    def __post_init__(self) -> None:
        all_prices = self.cpu, self.memory, self.gpu
        if not (all(0 <= price < math.inf for price in all_prices) and self.cpu + self.memory > 0):
            raise errors.BadInput(
                f"prices: {self.cpu:g} a core, {self.memory:g} a GiB and {self.gpu:g} a GPU; none may be below 0, and "
                "one of a core and a GiB must be above"
            )


def cost(shape: Shape, prices: Prices) -> float:
    """Return the hourly cost of the shape (Eqn 7 of the paper)."""
    return shape.cpu * prices.cpu + shape.memory / GIB * prices.memory + shape.gpus * prices.gpu
