"""Constants of the simulated cluster and its jobs, each with its source: a section of a paper, or "assumed" with a
reason.

Out: `ClusterWorld`; a trace file may override constants. The results of the papers' improved systems are never
inputs. Only facts about jobs and clusters before the improvement are. 000 is DLRover-RM (VLDB 2024), 001 is DLRover.
"""

from dataclasses import Field, dataclass, field, fields, replace
from typing import Any

from springtide import errors
from springtide.domain.core.shape import GIB, Shape
from springtide.domain.plan.profile import ModelFacts
from springtide.planning.perf_model.equations import Coefficients

DAY_S = 86_400.0


def known(value: float, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """Nodes of the cluster and the quota of a job."""

    nodes: int = known(1875, "nodes", "000 §6: jobs use 60K-120K cores a day; 60K cores of 32-core nodes")
    node_cpu: float = known(32.0, "cores", "000 §6: two 16-core E5-2682; 001 §6.1: at most 32 cores a pod")
    node_memory: float = known(192.0, "GiB", "000 §6, 001 §6.1")
    job_cpu: float = known(200.0, "cores", "001 §6.1: at most 200 cores a job")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTimes:
    """Waiting and starting times of pods."""

    launch_s: float = known(20.0, "s", "001 §6.3: about 20 s to launch pods")
    init_s: float = known(100.0, "s", "001 §6.3: about 100 s to initialize training")
    pending_s_a_core: float = known(
        300 / 32, "s", "assumed: Fig. 3 has no values in the text; 000 §2.2: 5-10 min, taken for the largest pod"
    )
    pending_spread: float = known(0.5, "sigma", "assumed: log-normal; a job waits for the slowest of its pods")
    patience_s: float = known(
        1800.0, "s", "000 §2.2: waits go beyond 30 min when resources are scarce; a job gives up at this limit"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTimes:
    """Cost of a change of servers, and cost of the loss of a server."""

    checkpoint_s: float = known(450.0, "s", "000 §2.2: 5-10 min to remote storage, its middle; stop-and-restart only")
    prepare_s: float = known(450.0, "s", "000 §2.2: 5-10 min to prepare the restart, its middle")
    load_s: float = known(450.0, "s", "000 §2.2: 5-10 min to load the checkpoint, its middle")
    live_pause_s: float = known(1.0, "s", "000 §5.2: less than 1 s for a 20 GB model through memory")
    save_every_s: float = known(600.0, "s", "assumed: work since the last save is lost with a server; 10 min")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """Frequency of lost pods, of stragglers and of hot servers."""

    pod_failures_a_day: float = known(0.015, "1/pod/day", "000 §2.2: daily failure rate of a single pod")
    preemptions_a_day: float = known(
        0.2,
        "1/pod/day",
        "assumed: the text gives no rate; with this rate, 75% of jobs without elasticity complete, between the 84 and "
        "67% of 000",
    )
    straggler_share: float = known(
        0.07, "of jobs", "000 Table 4: slow training by worker stragglers, without DLRover-RM"
    )
    straggler_speed: float = known(0.25, "of its cores", "001 §6.2: a straggler has 25% of its cores")
    hot_share: float = known(0.13, "of jobs", "000 §6.3: jobs with hot servers")
    hot_load: float = known(
        1.5, "x mean", "001 §4.2: hot servers were given 24 cores instead of 16, and 258 instead of 210 steps/s"
    )
    detect_s: float = known(60.0, "s", "000 §6.2: stragglers are handled within a minute")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMix:
    """Number and duration of submitted jobs, and how they differ."""

    jobs_a_day: float = known(2000.0, "jobs", "000 §6: 2K jobs a day")
    batch: int = known(512, "samples", "000 §6, 001 §6.1")
    steps_mean: float = known(268_000.0, "steps", "001 Table 3: average of TFJob jobs")
    steps_spread: float = known(0.8, "sigma", "assumed: log-normal; the text has the average only")
    testbed_steps: int = known(200_000, "steps", "000 §6")
    users: int = known(40, "users", "assumed: warm start needs users who come back")
    families_a_user: int = known(3, "kinds", "assumed: a user repeats the same few jobs with other data")
    common_share: float = known(
        0.5,
        "of kinds",
        "assumed: W&D, of the two most common (000 §2.1); with a third of each 75% would use < 50% of CPU, not 80%",
    )
    family_spread: float = known(
        0.25, "sigma", "assumed: coefficients of jobs of one model differ by widths and features"
    )
    job_spread: float = known(0.03, "sigma", "assumed: two runs of one kind differ by their data")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementNoise:
    """Errors in the measurements that a policy sees."""

    noise: float = known(0.05, "sigma", "assumed: error of a step time that is measured over 60 s")
    use_noise: float = known(
        0.05,
        "sigma",
        "assumed: error of the measured cores of all pods of a kind, over a minute; on a real job, the cost of a "
        "sample varied by less than 1% a minute, and by 2% (workers) and 4% (servers) between shapes",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeeds:
    """Memory that jobs need."""

    table_gib: float = known(
        32.0, "GiB", "001 Table 2: 8 servers x 8 GB are well tuned for W&D; the median is half of this"
    )
    table_spread: float = known(1.0, "sigma", "assumed: log-normal; 000 Fig. 1(b) shows one job of 2.3 TB")
    table_at_start: float = known(0.1, "of the end", "assumed; growth is proportional to samples, 000 §5.3")
    server_base_gib: float = known(1.0, "GiB", "assumed: a server process beside its tables")
    worker_gib: float = known(3.0, "GiB", "001 Table 2: 4 GB are well tuned for W&D")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSizes:
    """Resources that users request, and when they submit a failed job again."""

    memory_factor: float = known(
        4.76, "x need", "000 §2.2: 80% of jobs use < 50% of memory, 5-8% run out: log-normal through both"
    )
    memory_spread: float = known(1.03, "sigma", "the same two points")
    cpu_factor: float = known(
        5.0, "x need", "000 §2.2: 80% of jobs use < 50% of CPU: with this value 80% do; never below the need"
    )
    cpu_spread: float = known(0.8, "sigma", "assumed: log-normal, with cpu_factor")
    user_workers: float = known(
        8.0,
        "workers",
        "assumed: users ask for fewer workers than the quota holds; 000 §6.3 has classes below and above 100 cores",
    )
    user_workers_spread: float = known(0.7, "sigma", "assumed: log-normal")
    starved_share: float = known(0.06, "of jobs", "000 §6.3: jobs with too little server CPU")
    rerun_after_s: float = known(
        900.0, "s", "assumed: a user sees the failure and submits again, twice at most; a re-run is a new job (001 §6)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWorld:
    """Constants of a cluster and its jobs, by subject. A trace file names these constants without the subject."""

    size: ClusterSize = ClusterSize()
    pods: PodTimes = PodTimes()
    changes: ChangeTimes = ChangeTimes()
    faults: FaultRates = FaultRates()
    jobs: JobMix = JobMix()
    measured: MeasurementNoise = MeasurementNoise()
    memory: MemoryNeeds = MemoryNeeds()
    requests: RequestSizes = RequestSizes()

    def changed(self, **values: float) -> "ClusterWorld":
        """Return the constants with other values for some of them. The subject can be omitted, because the names are
        unique."""
        world = self
        for name, value in values.items():
            subject, _ = CONSTANTS[name]
            world = replace(world, **{subject: replace(getattr(world, subject), **{name: value})})
        return world


CONSTANTS: dict[str, tuple[str, Field[float]]] = {
    constant.name: (subject.name, constant)
    for subject in fields(ClusterWorld)
    for constant in fields(getattr(ClusterWorld(), subject.name))
}
"""Subject and field of each constant; a field has a default, a unit and a source."""


BATCH = 512
FLOATS = 26 * 16
"""Number of floats that a sample of Criteo looks up: 26 tables, with an assumed 16 floats per row."""
DENSE_BYTES = 2e6
BANDWIDTH = 1.25e9
"""Network bandwidth of 10 Gb/s in bytes, assumed. Only the product of the bandwidth and the coefficient `sync`, which
is set below, matters."""
SYNC_S = DENSE_BYTES / BANDWIDTH

TUNED_STEPS_S = 250.0
"""Steps per second of W&D (000 §6.2), in the shape that was tuned by hand in 001 Table 2."""
LOOKUP_SHARE = 0.39
"""Share of a step that lookups take in the tuned shape: the middle of 30-48% (000 Fig. 1(a))."""
GRAD, UPD, SYNC, EMB, BETA = 3.48, 2.36, 0.68, 2.45, 2.45
"""Fitted coefficients of 000 §6.2, which have no units.

Assumed units: a batch of 512 is 1, and M/B is 1. D is chosen so that lookups have their share of the step. The unit of
time is chosen so that the tuned shape has its throughput. The text does not name the model of these coefficients, so
W&D is assumed.
"""
WIDE_DEEP_CORES = (24 * 2.3 / 210, 85.1 / 210)
XDEEPFM_CORES = (8 * 18.3 / 47.8, 27.4 / 47.8)
"""Core-seconds per step of workers and of servers: used cores divided by steps/s after optimization (001 Table 1)."""
DCN_GRADIENT = 0.98
"""Gradient time of DCN relative to W&D (batch 512, one thread). The value was measured with `springtide.zoo`, and is
not in the papers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperModel:
    """Coefficients and tuned shape of one model."""

    name: str
    facts: ModelFacts
    coefficients: Coefficients
    tuned: Shape
    worker_core_s: float
    """Core-seconds per step on a worker: used cores divided by steps per second (001 Table 1)."""
    server_core_s: float
    """Core-seconds per step on all servers together."""
    source: str


def _shape(workers: int, worker_cpu: float, worker_gb: int, servers: int, server_cpu: float, server_gb: int) -> Shape:
    return Shape(
        workers=workers,
        servers=servers,
        worker_cpu=worker_cpu,
        server_cpu=server_cpu,
        worker_memory=worker_gb * GIB,
        server_memory=server_gb * GIB,
    )


def _in_units(*, grad_s: float, upd_s: float, sync_s: float, emb_s: float, beta_s: float) -> Coefficients:
    """Return coefficients from core-seconds, and from seconds with one worker and one server."""
    return Coefficients(grad=grad_s / BATCH, upd=upd_s, sync=sync_s / SYNC_S, emb=emb_s / (BATCH * FLOATS), beta=beta_s)


def _wide_deep() -> Coefficients:
    tuned = TUNED["widedeep"]
    per_server = tuned.workers / tuned.servers
    rest = GRAD / tuned.worker_cpu + UPD * per_server / tuned.server_cpu + SYNC * per_server + BETA
    lookup = rest * LOOKUP_SHARE / (1 - LOOKUP_SHARE)
    unit_s = tuned.workers / TUNED_STEPS_S / (rest + lookup)
    return _in_units(
        grad_s=GRAD * unit_s,
        upd_s=UPD * unit_s,
        sync_s=SYNC * unit_s,
        emb_s=lookup * tuned.servers * unit_s,
        beta_s=BETA * unit_s,
    )


def _xdeepfm() -> Coefficients:
    """Fit the three points of 001: 6.2 steps/s with (1 worker, 1 server), 47.8 with (8, 2), 56 with (10, 2).

    Three points cannot determine five coefficients, so the update and the constant are taken from W&D.
    """
    wide_deep = _wide_deep()
    one, eight, ten = 1 / 6.2, 8 / 47.8, 10 / 56
    a_worker_a_server = ten - eight  # difference between 4 and 5 workers per server
    sync = a_worker_a_server - wide_deep.upd / 16
    eight_rest = eight - 4 * a_worker_a_server - wide_deep.beta  # the value is grad / 18.3 + emb / 2
    one_rest = one - sync - wide_deep.upd / 32 - wide_deep.beta  # the value is grad / 19.4 + emb
    emb = (one_rest - eight_rest * 18.3 / 19.4) / (1 - 18.3 / 19.4 / 2)
    grad = (eight_rest - emb / 2) * 18.3
    return _in_units(grad_s=grad, upd_s=wide_deep.upd, sync_s=sync, emb_s=emb, beta_s=wide_deep.beta)


def _dcn() -> Coefficients:
    wide_deep = _wide_deep()
    return Coefficients(
        grad=wide_deep.grad * DCN_GRADIENT,
        upd=wide_deep.upd,
        sync=wide_deep.sync,
        emb=wide_deep.emb,
        beta=wide_deep.beta,
    )


TUNED = {
    "widedeep": _shape(24, 3, 4, 8, 16, 8),
    "xdeepfm": _shape(8, 20, 8, 2, 16, 8),
    "dcn": _shape(24, 3, 4, 8, 16, 8),
}
FACTS = ModelFacts(dense_bytes=DENSE_BYTES, bandwidth=BANDWIDTH, dim=FLOATS, batch=BATCH)
MODELS = {
    "widedeep": PaperModel(
        name="widedeep",
        facts=FACTS,
        coefficients=_wide_deep(),
        tuned=TUNED["widedeep"],
        worker_core_s=WIDE_DEEP_CORES[0],
        server_core_s=WIDE_DEEP_CORES[1],
        source="000 §6.2 coefficients; units by 250 steps/s, 39% lookups and the shape of 001 Table 2",
    ),
    "xdeepfm": PaperModel(
        name="xdeepfm",
        facts=FACTS,
        coefficients=_xdeepfm(),
        tuned=TUNED["xdeepfm"],
        worker_core_s=XDEEPFM_CORES[0],
        server_core_s=XDEEPFM_CORES[1],
        source="001 Table 1 and §4.2: 6.2, 47.8 and 56 steps/s; update and constant of W&D",
    ),
    "dcn": PaperModel(
        name="dcn",
        facts=FACTS,
        coefficients=_dcn(),
        tuned=TUNED["dcn"],
        worker_core_s=WIDE_DEEP_CORES[0] * DCN_GRADIENT,
        server_core_s=WIDE_DEEP_CORES[1],
        source=f"W&D with {DCN_GRADIENT:g} times its gradient time, measured; the papers have no figure",
    ),
}


def model(name: str) -> PaperModel:
    if name not in MODELS:
        raise errors.UnknownName("model", name, MODELS)
    return MODELS[name]
