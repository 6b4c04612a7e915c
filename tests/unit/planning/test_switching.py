"""What a change of shape costs."""

import numpy as np
import pytest

from springtide.domain.cluster import RoleKind
from springtide.domain.shape import Shape
from springtide.domain.view import Launch
from springtide.planning import switching
from springtide.planning.columns import columns

NOW = Shape(workers=2, servers=2, worker_cpu=4, server_cpu=4)


def launch(seconds, cpu=4.0, kind=RoleKind.WORKER):
    return Launch(kind=kind, cpu=cpu, memory=0, seconds=seconds)


def with_(**changes):
    fields = {"workers": 2, "servers": 2, "worker_cpu": 4, "server_cpu": 4}
    return columns([Shape(**(fields | changes))])


def test_start_times_grow_with_size_as_they_did():
    told = [launch(10 + 2 * cpu, cpu) for cpu in (1, 2, 8, 16)] + [launch(500, 8)]  # one outlier
    seconds = switching.start_seconds(told, RoleKind.WORKER, np.array([4.0, 32.0]))
    assert seconds == pytest.approx([18, 74], rel=0.2)


def test_without_launches_the_papers_figure_holds_and_garbage_counts_as_none():
    garbage = [launch(float("nan")), launch(-3.0), launch(7.0, kind=RoleKind.SERVER)]
    assert switching.start_seconds(garbage, RoleKind.WORKER, np.array([4.0])) == pytest.approx([20.0])


def test_staying_costs_nothing_and_fewer_workers_next_to_nothing():
    assert switching.seconds(NOW, with_(), ()) == pytest.approx([0.0])
    assert switching.seconds(NOW, with_(workers=1), ()) == pytest.approx([0.0])
    assert switching.seconds(NOW, with_(servers=1), ()) == pytest.approx([20.0])  # its slots must move


def test_workers_of_another_size_lose_the_time_their_successors_take():
    told = (launch(30.0), launch(30.0, 8.0))
    assert switching.lost_samples(NOW, with_(workers=4), told, 100.0, np.array([150.0])) == pytest.approx([1500.0])
    lost = switching.lost_samples(NOW, with_(worker_cpu=8), told, 100.0, np.array([150.0]))
    assert lost == pytest.approx([1500.0 + 3000.0])
