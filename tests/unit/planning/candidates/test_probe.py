"""The next configuration to measure is one that tells what is unclear."""

from dataclasses import replace

import pytest

from springtide.domain.core.shape import GIB, MemoryNeed, Shape, ShapeBounds
from springtide.planning.candidates import grids, pareto
from springtide.planning.perf_model import fit
from springtide.planning.perf_model.equations import Coefficients
from springtide.planning.perf_model.fit import FittedModel
from tests.unit.planning.planted import FACTS, SHAPES, profile, profiles

LEAST = Shape(workers=1, servers=1, worker_cpu=1.0, server_cpu=1.0)
BOUNDS = ShapeBounds(least=LEAST, most=Shape(workers=16, servers=8, worker_cpu=8.0, server_cpu=8.0))


def test_a_job_that_has_always_had_two_servers_is_to_try_another_number():
    known = [replace(shape, servers=2) for shape in SHAPES]
    fitted = fit.fit(profiles(known, timed=False), FACTS)
    assert "emb" in fitted.unclear
    found = pareto.next_probe(fitted, BOUNDS)
    assert found.shape.servers != 2 and found.tells > 1
    assert "would tell most" in found.why and "emb" in found.why


def test_probing_as_told_makes_everything_clear_within_a_few_probes():
    measured = profiles(SHAPES[:3], timed=False)
    for _ in range(4):
        fitted = fit.fit(measured, FACTS)
        measured.append(profile(pareto.next_probe(fitted, BOUNDS).shape, timed=False))
    fitted = fit.fit(measured, FACTS)
    assert isinstance(fitted, FittedModel) and fitted.unclear == ()


def test_a_probe_has_the_memory_that_the_job_needs():
    bounds = replace(BOUNDS, most=replace(BOUNDS.most, worker_memory=8 * GIB, server_memory=8 * GIB))
    fitted = fit.fit(profiles(), FACTS)
    found = pareto.next_probe(fitted, bounds, need=MemoryNeed(worker=GIB, rows=24 * GIB))
    assert bounds.holds(found.shape) and found.shape.servers >= 3
    assert pareto.next_probe(fitted, bounds, need=MemoryNeed(rows=100 * GIB)) is None


def test_without_anything_to_go_by_there_is_no_probe(monkeypatch):
    fitted = fit.fit(profiles(), FACTS)
    nothing = Coefficients(grad=0.0, upd=0.0, sync=0.0, emb=0.0, beta=0.0)
    assert pareto.next_probe(replace(fitted, coefficients=nothing), BOUNDS) is None
    monkeypatch.setattr(grids, "MOST", 10)
    assert pareto.next_probe(fitted, BOUNDS) is None


@pytest.mark.parametrize("timed", [True, False])
def test_what_is_well_known_has_little_to_tell(timed):
    well, badly = (fit.fit(profiles(shapes, timed=timed), FACTS) for shapes in (SHAPES, SHAPES[:3]))
    assert pareto.next_probe(well, BOUNDS).tells < pareto.next_probe(badly, BOUNDS).tells
