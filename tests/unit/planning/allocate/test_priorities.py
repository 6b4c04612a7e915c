"""Priority weights of jobs."""

from dataclasses import replace

import numpy as np
import pytest

from springtide import errors
from springtide.planning.allocate import choose
from tests.unit.planning.allocate.test_choose import bid

SHORT = replace(bid(samples_left=1_000.0), throughput_now=10.0, waited_s=10.0, given=1.0)
LONG = replace(bid(samples_left=50_000.0), throughput_now=10.0, waited_s=900.0, given=4.0)
SPEEDS = np.array([10.0, 20.0])


def weights(name, rho, epsilon=1e-3):
    weigh = choose.priority(name)
    return [weigh(job, SPEEDS, rho, epsilon)[0] for job in (SHORT, LONG)]


@pytest.mark.parametrize("name", ["remaining", "remaining_now"])
def test_priorities_are_equal_as_rho_approaches_zero(name):
    for rho in (1e-3, 1e-6, 0.0):
        short, long = weights(name, rho)
        assert np.exp(short) == pytest.approx(1.0, abs=20 * rho)
        assert np.exp(long) == pytest.approx(1.0, abs=20 * rho)


@pytest.mark.parametrize("name", ["remaining", "remaining_now"])
def test_large_rho_favours_the_job_that_ends_first(name):
    gaps = [np.subtract(*weights(name, rho)) for rho in (0.5, 2.5, 10.0, 1e6)]
    assert gaps == sorted(gaps) and gaps[0] > 0
    assert np.exp(-gaps[-1]) == 0.0  # nothing the other gains can outweigh it


@pytest.mark.parametrize("name", ["remaining", "remaining_now"])
def test_negative_rho_favours_the_job_that_ends_last(name):
    short, long = weights(name, -2.5)
    assert long > short


def test_priority_weight_is_that_of_eqn_14():
    (weight, faster) = np.exp(choose.remaining(SHORT, SPEEDS, 2.5, 0.5))
    assert weight == pytest.approx(1 / (100 + 0.5) ** 2.5)
    assert faster == pytest.approx(1 / (50 + 0.5) ** 2.5)


def test_epsilon_bounds_the_weight_of_a_job_near_its_end():
    done = replace(SHORT, samples_left=0.0)
    assert np.isfinite(choose.remaining(done, SPEEDS, 2.5, 1.0)).all()
    assert np.isfinite(choose.remaining(done, SPEEDS, 2.5, 0.0)).all()
    assert np.isfinite(choose.remaining(SHORT, np.zeros(2), 2.5, 1.0)).all()


def test_other_priorities_use_given_weights_or_waiting_time():
    assert weights("equal", 2.5) == [0.0, 0.0]
    assert weights("given", 2.5) == pytest.approx([0.0, np.log(4.0)])
    short, long = weights("waiting", 1.0)
    assert long > short


def test_unknown_priority_suggests_the_nearest_name():
    with pytest.raises(errors.UnknownName, match="Did you mean 'remaining'"):
        choose.priority("remaning")
