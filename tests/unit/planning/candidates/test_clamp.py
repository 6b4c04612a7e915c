"""Clamp shapes to what a job may have."""

from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.domain.core.shape import MemoryNeed, ResourceBudget, Shape, ShapeBounds
from springtide.domain.spec.planning_config import PlanningConfig
from springtide.planning.candidates import clamp

CONFIG = PlanningConfig()


@st.composite
def shapes(draw, most=64):
    return Shape(
        workers=draw(st.integers(1, most)),
        servers=draw(st.integers(1, most)),
        worker_cpu=draw(st.floats(0.1, 64)),
        server_cpu=draw(st.floats(0.1, 64)),
        worker_memory=draw(st.integers(0, 1 << 36)),
        server_memory=draw(st.integers(0, 1 << 36)),
    )


@st.composite
def bounds(draw):
    one, other = draw(shapes()), draw(shapes())
    least, most = (
        {name: pick(getattr(one, name), getattr(other, name)) for name in Shape.__slots__} for pick in (min, max)
    )
    low = Shape(**least)
    more = draw(st.floats(1.0, 10.0))
    return ShapeBounds(
        least=low, most=Shape(**most), quota=ResourceBudget(cpu=low.cpu * more, memory=low.memory * more)
    )


@given(shapes(), bounds(), st.integers(0, 1 << 38))
@settings(max_examples=60, deadline=None)
def test_clamped_shape_is_within_bounds_and_quota(wished, limits, rows):
    held = clamp.within(wished, limits, CONFIG, need=MemoryNeed(rows=rows))
    assert limits.holds(held)
    assert clamp.quota(limits, CONFIG).holds(held)


@given(shapes(), bounds(), st.floats(0, 500), st.floats(0, 1e12))
@settings(max_examples=60, deadline=None)
def test_shrunk_shape_fits_the_room_or_is_none(wished, limits, cpu, memory):
    room = ResourceBudget(cpu=cpu, memory=memory)
    start = clamp.clipped(wished, limits, CONFIG)
    held = clamp.smaller(start, limits, room)
    if held is None:
        assert not room.holds(limits.least)
    else:
        assert room.holds(held)
        assert all(getattr(held, name) <= getattr(start, name) for name in Shape.__slots__)
        assert all(getattr(held, name) >= getattr(limits.least, name) for name in Shape.__slots__)


def test_workers_are_cut_first_when_room_is_short():
    least = Shape(workers=1, servers=1, worker_cpu=1, server_cpu=1)
    wished = Shape(workers=10, servers=2, worker_cpu=4, server_cpu=8)
    held = clamp.smaller(wished, ShapeBounds(least=least, most=wished), ResourceBudget(cpu=30, memory=0))
    assert held == Shape(workers=3, servers=2, worker_cpu=4, server_cpu=8)


def test_cores_are_rounded_up_to_tenths():
    least, most = (Shape(workers=1, servers=1, worker_cpu=c, server_cpu=c) for c in (0.1, 32))
    wished = Shape(workers=1, servers=1, worker_cpu=2.31, server_cpu=2.3)
    held = clamp.within(wished, ShapeBounds(least=least, most=most), CONFIG)
    assert (held.worker_cpu, held.server_cpu) == (2.4, 2.3)
