"""Every schedule is legal by Herald's Appendix A and pushes no row beyond it."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.embedding.schedule import scheduler as schedulers
from tests.inspected_scheduler import InspectedScheduler
from tests.oracles import schedule_model
from tests.oracles.schedule_model import Actions, IllegalPlan, Model

ROW = (0, 7)


@st.composite
def streams(draw):
    workers = draw(st.integers(1, 5))
    samples = draw(st.integers(1, 12))
    tables = draw(st.integers(1, 3))
    rows = draw(st.integers(1, 12))
    ids = st.lists(st.integers(0, rows - 1), min_size=samples * tables, max_size=samples * tables)
    batches = draw(st.lists(ids, min_size=1, max_size=8))
    chosen = schedulers.ScheduleSettings(
        workers=workers,
        capacity_rows=draw(st.sampled_from([0, 1, 2, 5, 100])),
        policy=draw(st.sampled_from(["anneal", "contiguous", "laia", "random"])),
        p2p=draw(st.sampled_from(schedulers.P2P)),
        p2p_trainers=draw(st.integers(1, 5)),
        seed=draw(st.integers(0, 3)),
    )
    return chosen, [np.array(batch, dtype=np.int64).reshape(samples, tables) for batch in batches]


@settings(max_examples=80, deadline=None)
@given(streams())
def test_every_plan_is_legal_and_writes_back_no_unneeded_row(stream):
    chosen, batches = stream
    scheduler, model = InspectedScheduler(chosen), Model(workers=chosen.workers)
    before = []
    for ids in batches:
        features = [schedulers.FeatureIds(table, np.ascontiguousarray(column)) for table, column in enumerate(ids.T)]
        plans = scheduler.schedule(features, len(ids)).plans
        model.step(schedule_model.actions(plans, before))  # raises at the first rule that is broken
        before = plans
    latest = {key: [worker for worker, part in at.items() if part == 1] for key, at in model.at.items()}
    for worker in range(chosen.workers):
        tables, keys, _ = scheduler.cached(worker)
        assert all(latest[(int(t), int(k))] == [worker] for t, k in zip(tables, keys, strict=True))


def one_step(**changed):
    return Actions(**{"trained": frozenset(), "pushed": frozenset(), "pulled": frozenset(), **changed})


def held_by(*workers):
    return frozenset((ROW, worker) for worker in workers)


def trained_by(*workers):
    """A model in which these workers have just trained the row, for the first time."""
    model = Model(workers=3)
    model.step(one_step(trained=held_by(*workers), pulled=held_by(*workers)))
    return model


def test_gradient_parts_add_up_to_the_row_on_the_servers():
    model = trained_by(0, 1)
    assert model.at[ROW] == {0: Fraction(1, 2), 1: Fraction(1, 2)} and model.servers[ROW] == 0
    cost = model.step(one_step(trained=held_by(2), pushed=held_by(0, 1), pulled=held_by(2)))
    assert model.at[ROW] == {2: 1} and cost == 2


def test_gathered_row_is_the_workers_own():
    model = trained_by(0)
    model.step(one_step(trained=held_by(0, 1), sent=frozenset({(ROW, 0, 1)}), gathered=frozenset({(ROW, 1, 0)})))
    assert model.at[ROW] == {0: 1}


@pytest.mark.parametrize(
    ("who", "step", "why"),
    [
        ((0,), {"trained": held_by(1), "pulled": held_by(1)}, "does not push"),
        ((0, 1), {"trained": held_by(0), "pushed": held_by(1), "pulled": held_by(0)}, "does not push"),
        ((0,), {"trained": held_by(1), "pushed": held_by(0)}, "gets no latest row"),
        ((0,), {"trained": held_by(0), "pulled": held_by(0)}, "the servers lack"),
        ((0,), {"pushed": held_by(0)}, "nobody needs"),
        ((0,), {"pushed": held_by(1)}, "has nothing of it"),
        ((0,), {"dropped": held_by(0)}, "the only latest row"),
        ((0,), {"trained": held_by(2), "sent": frozenset({(ROW, 1, 2)})}, "does not push|lacks its latest row"),
        ((0,), {"trained": held_by(0, 1), "sent": frozenset({(ROW, 0, 1)})}, "servers that lack its row"),
        ((0,), {"trained": held_by(0), "sent": frozenset({(ROW, 0, 0)})}, "of which it has the latest row"),
    ],
)
def test_plan_that_breaks_a_rule_is_refused(who, step, why):
    with pytest.raises(IllegalPlan, match=why):
        trained_by(*who).step(one_step(**step))


def test_smallest_push_matches_the_appendix():
    assert trained_by(0).needed(held_by(0)) == frozenset()
    assert trained_by(0).needed(held_by(1)) == held_by(0)
    assert trained_by(0).needed(held_by(0, 1)) == held_by(0)
    assert trained_by(0, 1).needed(held_by(0)) == held_by(0, 1)
    assert trained_by(0, 1).needed(frozenset()) == frozenset()
