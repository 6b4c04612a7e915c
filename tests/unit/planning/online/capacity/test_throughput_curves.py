"""Samples a second by workers and servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.planning.online.capacity.throughput_curves import CapacitySurface, SurfaceSample, fit_surface, mape

SHAPES = [(w, p) for w in (1, 2, 3, 4, 6, 8) for p in (1, 2, 3, 4)]
SOME = st.floats(0.01, 10)


@given(st.sampled_from([("sync", 7), ("async", 4), ("shared", 5)]), st.data())
def test_a_surface_is_found_again_from_what_it_gives(kind, data):
    name, many = kind
    truth = CapacitySurface(
        kind=name, coefficients=tuple(data.draw(st.lists(SOME, min_size=many, max_size=many))), batch=64
    )
    seen = [SurfaceSample(w, p, truth(w, p)) for w, p in SHAPES]
    found = fit_surface(name, seen, batch=64)
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
            fit_surface("sync", seen)
    with pytest.raises(errors.UnknownName):
        fit_surface("ernest", [SurfaceSample(1, 1, 1.0)])
