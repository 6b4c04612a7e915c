"""Jobs with known coefficients and their profiles, for tests of fits and fronts."""

import numpy

from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import ModelFacts, Profile, TimingSum
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Coefficients, Shapes
from springtide.planning.perf_model.shape_columns import columns

FACTS = ModelFacts(dense_bytes=8e6, bandwidth=1e9, dim=400, batch=512)
TRUE = Coefficients(grad=2e-4, upd=0.02, sync=2.0, emb=1e-7, beta=0.005)
SHAPES = tuple(
    Shape(workers=w, servers=p, worker_cpu=a, server_cpu=b)
    for w, p, a, b in (
        (1, 1, 1.0, 1.0),
        (4, 1, 1.0, 2.0),
        (4, 2, 2.0, 1.0),
        (8, 2, 4.0, 4.0),
        (8, 4, 1.0, 1.0),
        (2, 4, 8.0, 2.0),
        (16, 4, 2.0, 8.0),
        (12, 8, 4.0, 1.0),
        (6, 3, 3.0, 3.0),
        (3, 6, 1.5, 1.5),
    )
)


def profile(shape, *, true=TRUE, facts=FACTS, noise=1.0, timed=True, steps=100):
    """One window; `noise` multiplies all times."""
    terms = [noise * float(term) for term in equations.terms(true, facts, shape)]
    parts = dict(zip(("gradient_s", "update_s", "synchronization_s", "lookup_s"), terms, strict=False))
    return Profile(
        shape=shape,
        batch=facts.batch,
        timing=TimingSum(
            steps=steps,
            samples=steps * facts.batch,
            total_s=steps * sum(terms),
            **({name: steps * seconds for name, seconds in parts.items()} if timed else {}),
        ),
        at=0.0,
    )


def profiles(shapes=SHAPES, *, deviation=0.0, windows=1, seed=0, **given):
    """Some windows of each shape, each with its own noise."""
    drawn = numpy.random.default_rng(seed)
    return [
        profile(shape, noise=float(numpy.exp(deviation * drawn.normal())), **given)
        for shape in shapes
        for _ in range(windows)
    ]


def arrays(shapes):
    """Shapes as the equations take them."""
    return Shapes(*columns(shapes)[:4])
