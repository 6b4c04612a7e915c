"""The three models of the papers: true coefficients of Eqns 1-6, in seconds, samples, cores and bytes.

In: a name. Out: a `PaperModel`. Next: `workload` varies it by kind of job. Where each number comes from is said beside
it.
"""

from dataclasses import dataclass

from springtide import errors
from springtide.domain.core.shape import GIB, Shape
from springtide.domain.plan.profile import ModelFacts
from springtide.planning.perf_model.equations import Coefficients

BATCH = 512
FLOATS = 26 * 16
"""Criteo: 26 tables; 16 floats a row are assumed."""
DENSE_BYTES = 2e6
BANDWIDTH = 1.25e9
"""10 Gb/s, assumed. Only the product with the coefficient matters, and that is set below."""
SYNC_S = DENSE_BYTES / BANDWIDTH

TUNED_STEPS_S = 250.0
"""000 §6.2: W&D reaches 250 steps/s; 001 Table 2 has the shape that was tuned by hand."""
LOOKUP_SHARE = 0.39
"""000 Fig. 1(a): lookups take 30-48% of a step; the middle, at the tuned shape."""
GRAD, UPD, SYNC, EMB, BETA = 3.48, 2.36, 0.68, 2.45, 2.45
"""000 §6.2: the fitted coefficients, without units. Units are chosen: a batch of 512 is 1, M/B is 1, D is such that
lookups take their share, and time such that the tuned shape has its throughput. W&D is assumed: the text names none."""
WIDE_DEEP_CORES = (24 * 2.3 / 210, 85.1 / 210)
XDEEPFM_CORES = (8 * 18.3 / 47.8, 27.4 / 47.8)
"""001 Table 1, after optimizing: cores used by workers and by servers, over steps/s."""
DCN_GRADIENT = 0.98
"""Gradient time of DCN against W&D, batch 512, one thread: measured with `springtide.zoo`; not in the papers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperModel:
    """One model."""

    name: str
    facts: ModelFacts
    coefficients: Coefficients
    tuned: Shape
    """The shape tuned by hand."""
    worker_core_s: float
    """Core-seconds that a step takes on a worker: cores used over steps a second, 001 Table 1."""
    server_core_s: float
    """The same on all servers together."""
    steps: tuple[int, int]
    """Workers and servers that ES and Optimus add at a time (001 §6.3)."""
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
    """From core-seconds of a batch, of an update, and seconds of a worker and a server alone."""
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
    """Through 001's three points: 6.2 steps/s with (1 worker, 1 server), 47.8 with (8, 2), 56 with (10, 2).

    Update and constant are W&D's: three points do not tell five coefficients.
    """
    wide_deep = _wide_deep()
    one, eight, ten = 1 / 6.2, 8 / 47.8, 10 / 56
    a_worker_a_server = ten - eight  # from 4 to 5 workers a server
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
