"""Cost of a change of shape."""

from dataclasses import replace

import numpy as np
import pytest

from springtide.domain.core.roles import RoleKind
from springtide.domain.core.shape import Shape
from springtide.domain.plan.view import LaunchTime
from springtide.planning.candidates import switch_cost
from springtide.planning.candidates.switch_cost import starts
from springtide.planning.perf_model.shape_columns import columns

NOW = Shape(workers=2, servers=2, worker_cpu=4, server_cpu=4)


def launch(seconds, cpu=4.0, kind=RoleKind.WORKER):
    return LaunchTime(kind=kind, cpu=cpu, memory=0, seconds=seconds)


def changed_shape(**changes):
    fields = {"workers": 2, "servers": 2, "worker_cpu": 4, "server_cpu": 4}
    return columns([Shape(**(fields | changes))])


def test_start_times_grow_with_role_size_as_measured():
    told = [launch(10 + 2 * cpu, cpu) for cpu in (1, 2, 8, 16)] + [launch(500, 8)]  # one outlier
    seconds = starts(told).worker.seconds(np.array([4.0, 32.0]))
    assert seconds == pytest.approx([18, 74], rel=0.2)


def test_start_time_defaults_to_the_papers_value_and_ignores_invalid_launches():
    garbage = [launch(float("nan")), launch(-3.0), launch(7.0, kind=RoleKind.SERVER)]
    assert starts(garbage).worker.seconds(np.array([4.0])) == pytest.approx([20.0])


def test_unchanged_shape_costs_nothing_and_fewer_workers_almost_nothing():
    assert switch_cost.seconds(NOW, changed_shape(), starts(())) == pytest.approx([0.0])
    assert switch_cost.seconds(NOW, changed_shape(workers=1), starts(())) == pytest.approx([0.0])
    assert switch_cost.seconds(NOW, changed_shape(servers=1), starts(())) == pytest.approx(
        [20.0]
    )  # its slots must move


def test_job_keeps_its_speed_until_a_change_is_ready():
    told = (launch(30.0), launch(30.0, 8.0))
    mean = switch_cost.mean_throughput(NOW, changed_shape(workers=4), starts(told), 100.0, np.array([200.0]), 9000.0)
    assert mean == pytest.approx([9000 / (30 + 6000 / 200)])
    mean = switch_cost.mean_throughput(NOW, changed_shape(worker_cpu=8), starts(told), 100.0, np.array([200.0]), 9000.0)
    assert mean == pytest.approx([9000 / (30 + (6000 + 3000) / 200)])  # and each worker is begun anew


def test_faster_of_two_equally_long_changes_is_better_for_any_job_length():
    both = columns([replace(NOW, workers=4), replace(NOW, workers=8)])
    for samples in (4000.0, 20_000.0, 1e9):
        slow, fast = switch_cost.mean_throughput(
            NOW, both, starts((launch(30.0),)), 100.0, np.array([2e4, 4e4]), samples
        )
        assert fast > slow > 100.0
    over = switch_cost.mean_throughput(NOW, both, starts((launch(30.0),)), 100.0, np.array([2e4, 4e4]), 2000.0)
    assert over == pytest.approx([0.0, 0.0])  # it is over before the workers are there


def test_waiting_does_not_improve_a_slower_shape():
    fewer = columns([replace(NOW, servers=1)])
    mean = switch_cost.mean_throughput(
        NOW, fewer, starts((launch(30.0, kind=RoleKind.SERVER),)), 100.0, np.array([50.0]), 2000.0
    )
    assert mean == pytest.approx([50.0])


def test_stalled_job_gains_by_any_change():
    mean = switch_cost.mean_throughput(
        NOW, changed_shape(workers=4), starts((launch(30.0),)), 0.0, np.array([200.0]), 9000.0
    )
    assert mean == pytest.approx([9000 / (30 + 45)])
