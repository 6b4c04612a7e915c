"""The model's equations for single shapes and arrays."""

import numpy
import pytest

from springtide import errors
from springtide.domain.core.shape import Shape
from springtide.domain.plan.profile import ModelFacts
from springtide.planning.perf_model import equations
from springtide.planning.perf_model.equations import Coefficients
from tests.unit.planning.planted import arrays

FACTS = ModelFacts(dense_bytes=8e6, bandwidth=1e9, dim=400, batch=500)
TRUE = Coefficients(grad=2e-4, upd=0.02, sync=2.0, emb=1e-7, beta=0.005)
SHAPE = Shape(workers=4, servers=2, worker_cpu=2.0, server_cpu=0.5)


def test_step_time_is_the_sum_of_its_terms():
    terms = equations.terms(TRUE, FACTS, SHAPE)
    assert terms == pytest.approx((0.05, 0.08, 0.032, 0.01, 0.005))
    assert equations.step_seconds(TRUE, FACTS, SHAPE) == pytest.approx(0.177)
    assert equations.throughput(TRUE, FACTS, SHAPE) == pytest.approx(4 * 500 / 0.177)


def test_vectorized_equations_match_single_shapes():
    some = [
        Shape(workers=w, servers=p, worker_cpu=a, server_cpu=b)
        for w, p, a, b in ((1, 1, 1.0, 1.0), (4, 2, 2.0, 0.5), (9, 3, 0.25, 8.0))
    ]
    together = arrays(some)
    alone = [equations.step_seconds(TRUE, FACTS, one) for one in some]
    numpy.testing.assert_allclose(equations.step_seconds(TRUE, FACTS, together), alone)
    numpy.testing.assert_allclose(
        equations.throughput(TRUE, FACTS, together), [equations.throughput(TRUE, FACTS, one) for one in some]
    )


def test_job_with_zero_coefficients_has_zero_throughput():
    nothing = Coefficients(grad=0.0, upd=0.0, sync=0.0, emb=0.0, beta=0.0)
    assert equations.throughput(nothing, FACTS, SHAPE) == 0.0
    assert equations.throughput(nothing, FACTS, arrays([SHAPE])).tolist() == [0.0]


def test_negative_coefficients_are_refused():
    with pytest.raises(errors.BadInput, match="coefficient upd -1"):
        Coefficients(grad=0.0, upd=-1.0, sync=0.0, emb=0.0, beta=0.0)
