"""Candidate shapes near those measured."""

import pytest

from springtide.domain.core.shape import NO_NEED, ResourceBudget, Shape, ShapeBounds
from springtide.planning.allocate import bids

NOW = Shape(workers=2, servers=1, worker_cpu=0.7, server_cpu=0.5)


def trust_region(step):
    limits = ShapeBounds(
        least=Shape(workers=1, servers=1, worker_cpu=0.5, server_cpu=0.2),
        most=Shape(workers=3, servers=2, worker_cpu=1.0, server_cpu=1.0),
        cpu_step=step,
        quota=ResourceBudget(cpu=2.0, memory=2**40),
    )
    return bids.TrustRegion({NOW}, NOW, limits, NO_NEED)


def test_candidate_sizes_follow_the_step_of_the_bounds():
    shapes, _ = bids.nearby_shapes([trust_region(0.1)])
    for cpus in (shapes.worker_cpu, shapes.server_cpu):
        assert cpus.tolist() == pytest.approx([round(cpu, 1) for cpu in cpus.tolist()])
    assert shapes.worker_cpu.min() == 0.5 and shapes.worker_cpu.max() == 1.0


def test_current_shape_is_always_a_candidate():
    for step in (None, 0.1, 0.3):
        shapes, _ = bids.nearby_shapes([trust_region(step)])
        rows = zip(shapes.workers, shapes.servers, shapes.worker_cpu, shapes.server_cpu, strict=True)
        assert (2, 1, 0.7, 0.5) in set(rows)
