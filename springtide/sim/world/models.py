"""The three models of the papers: true coefficients of Eqns 1-6, in seconds, samples, cores and bytes.

In: a name. Out: a `PaperModel`. Next: `workload` varies it by kind of job. The source of each number is beside it.
"""

from dataclasses import dataclass

from springtide import errors
from springtide.domain.core.shape import GIB, Shape
from springtide.domain.plan.profile import ModelFacts
from springtide.planning.perf_model.equations import Coefficients

BATCH = 512
FLOATS = 26 * 16
"""Floats of a sample in Criteo: 26 tables; 16 floats per row are assumed."""
DENSE_BYTES = 2e6
BANDWIDTH = 1.25e9
"""Network bandwidth of 10 Gb/s in bytes, assumed. Only its product with the coefficient matters, which is set below."""
SYNC_S = DENSE_BYTES / BANDWIDTH

TUNED_STEPS_S = 250.0
"""Steps per second of W&D (000 §6.2) in the hand-tuned shape of 001 Table 2."""
LOOKUP_SHARE = 0.39
"""Share of lookups in a step at the tuned shape: the middle of 30-48% (000 Fig. 1(a))."""
GRAD, UPD, SYNC, EMB, BETA = 3.48, 2.36, 0.68, 2.45, 2.45
"""Fitted coefficients of 000 §6.2, which have no units.

Assumed units: a batch of 512 is 1, and M/B is 1. D gives lookups their share, and time gives the tuned shape its
throughput. The model is assumed to be W&D, because the text names none.
"""
WIDE_DEEP_CORES = (24 * 2.3 / 210, 85.1 / 210)
XDEEPFM_CORES = (8 * 18.3 / 47.8, 27.4 / 47.8)
"""Core-seconds per step of workers and of servers: used cores over steps/s after optimization (001 Table 1)."""
DCN_GRADIENT = 0.98
"""Gradient time of DCN relative to W&D (batch 512, one thread), measured with `springtide.zoo`; not in the papers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperModel:
    """Coefficients and tuned shape of one model."""

    name: str
    facts: ModelFacts
    coefficients: Coefficients
    tuned: Shape
    """Shape tuned by hand."""
    worker_core_s: float
    """Core-seconds per step on a worker: used cores over steps per second, 001 Table 1."""
    server_core_s: float
    """Core-seconds per step on all servers together."""
    steps: tuple[int, int]
    """Numbers of workers and servers that ES and Optimus add at a time (001 §6.3)."""
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
    """Return coefficients from core-seconds of a batch and an update, and from seconds with one worker
    and one server.
    """
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

    Three points cannot determine five coefficients, so the update and the constant are those of W&D.
    """
    wide_deep = _wide_deep()
    one, eight, ten = 1 / 6.2, 8 / 47.8, 10 / 56
    a_worker_a_server = ten - eight  # the difference between 4 and 5 workers per server
    sync = a_worker_a_server - wide_deep.upd / 16
    eight_rest = eight - 4 * a_worker_a_server - wide_deep.beta  # grad / 18.3 + emb / 2
    one_rest = one - sync - wide_deep.upd / 32 - wide_deep.beta  # grad / 19.4 + emb
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
        steps=(4, 2),
        worker_core_s=WIDE_DEEP_CORES[0],
        server_core_s=WIDE_DEEP_CORES[1],
        source="000 §6.2 coefficients; units by 250 steps/s, 39% lookups and the shape of 001 Table 2",
    ),
    "xdeepfm": PaperModel(
        name="xdeepfm",
        facts=FACTS,
        coefficients=_xdeepfm(),
        tuned=TUNED["xdeepfm"],
        steps=(1, 1),
        worker_core_s=XDEEPFM_CORES[0],
        server_core_s=XDEEPFM_CORES[1],
        source="001 Table 1 and §4.2: 6.2, 47.8 and 56 steps/s; update and constant of W&D",
    ),
    "dcn": PaperModel(
        name="dcn",
        facts=FACTS,
        coefficients=_dcn(),
        tuned=TUNED["dcn"],
        steps=(4, 2),
        worker_core_s=WIDE_DEEP_CORES[0] * DCN_GRADIENT,
        server_core_s=WIDE_DEEP_CORES[1],
        source=f"W&D with {DCN_GRADIENT:g} times its gradient time, measured; the papers have no figure",
    ),
}


def model(name: str) -> PaperModel:
    if name not in MODELS:
        raise errors.UnknownName("model", name, MODELS)
    return MODELS[name]
