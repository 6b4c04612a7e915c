"""Samples a second by workers and servers, and how well models foretell what they have not seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.planning.online.capacity_model import CapacityCurve, CapacitySample
from springtide_lab.reproduce.throughput_curves import (
    CapacitySurface,
    SurfaceSample,
    fit_surface,
    judge,
    judged,
    left_out,
)

SHAPES = [(w, p) for w in (1, 2, 3, 4, 6, 8) for p in (1, 2, 3, 4)]
SOME = st.floats(0.01, 10)


def mape(surface, seen):
    return judged([surface(one.workers, one.servers) for one in seen], [one.throughput for one in seen]).mape


@given(st.sampled_from([("async", 4), ("shared", 5)]), st.data())
def test_a_surface_is_found_again_from_what_it_gives(kind, data):
    name, many = kind
    truth = CapacitySurface(kind=name, coefficients=tuple(data.draw(st.lists(SOME, min_size=many, max_size=many))))
    seen = [SurfaceSample(w, p, truth(w, p)) for w, p in SHAPES]
    found = fit_surface(name, seen)
    assert mape(found, seen) < 1e-5
    assert found(7, 2) == pytest.approx(truth(7, 2), rel=1e-3)


def test_what_servers_share_out_is_seen_by_ours_and_not_by_optimus():
    truth = CapacitySurface(kind="async", coefficients=(1.0, 6.0, 0.0, 0.01))
    seen = [SurfaceSample(w, p, truth(w, p)) for w, p in SHAPES]
    assert mape(fit_surface("async", seen), seen) < 0.001
    assert mape(fit_surface("optimus-async", seen), seen) > 0.1


def test_servers_that_are_too_few_are_seen_by_ours_and_not_by_eqn_8():
    truth = CapacitySurface(kind="shared", coefficients=(1.0, 0.1, 0.0, 0.0, 2.0))
    seen = [SurfaceSample(w, p, truth(w, p)) for w, p in SHAPES]
    assert mape(fit_surface("shared", seen), seen) < 0.001
    assert mape(fit_surface("async", seen), seen) > 0.1


def test_measurements_that_say_nothing_are_refused():
    for seen in ([], [SurfaceSample(0, 1, 5.0)], [SurfaceSample(2, 0, 5.0)], [SurfaceSample(2, 1, float("nan"))]):
        with pytest.raises(errors.BadInput, match="measurements of throughput"):
            fit_surface("async", seen)
    with pytest.raises(errors.UnknownName):
        fit_surface("ernest", [SurfaceSample(1, 1, 1.0)])


TRUTH = CapacityCurve(kind="async", coefficients=(0.000566, 0.000224, 0.0))


def measured(*numbers):
    return [CapacitySample(workers, TRUTH(workers)) for workers in numbers]


def test_errors_are_what_they_are_called():
    off = judged([90, 220], [100, 200])
    assert off.mape == pytest.approx(0.1) and off.mae == 15 and off.rmse == pytest.approx(250**0.5)
    assert off.worst == pytest.approx(0.1)


def test_a_model_that_has_the_truths_form_foretells_it_and_the_others_do_not():
    found = judge("async", measured(1, 2, 4, 8, 16), measured(3, 6, 12, 24))
    assert found["async"].mape < 1e-6
    assert min(found["ernest"].mape, found["optimus-async"].mape) > 0.01


def test_few_measurements_are_each_foretold_from_the_others():
    found = left_out("async", measured(1, 2, 3, 4, 5))
    assert set(found) == {"learned", "async", "ernest", "optimus-async"} and found["async"].worst < 1e-6
