"""What plans put on the wire, against the rows that they count; rows with their optimizer's state weigh more."""

import numpy as np
import pytest

from springtide import _native
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.specs import native_spec
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.schedule import plan_bytes, sync_plan
from springtide.embedding.schedule import scheduler as allocate
from springtide.embedding.schedule.plan_bytes import KEY, SAID, RowSize
from springtide.worker.cache import row_cache

SEED = 7
SIZES = {0: RowSize(64, 64), 2: RowSize(32, 100)}


def plans(p2p, batches=12):
    """Of the last of some batches, users of which come back."""
    chance = np.random.default_rng(SEED)
    settings = allocate.ScheduleSettings(workers=3, capacity_rows=60, tables=(0, 2), policy="laia", p2p=p2p, seed=SEED)
    scheduler = allocate.Scheduler(settings)
    for _ in range(batches):
        ids = (40 * chance.random(30) ** 2).astype(np.int64)
        made = scheduler.schedule([allocate.FeatureIds(0, ids, None), allocate.FeatureIds(2, ids // 2, None)], 30)
    return made.plans


@pytest.mark.parametrize("p2p", ["off", "rows", "gradients"])
def test_with_names_and_rows_of_one_byte_each_bytes_are_the_rows_that_are_counted(p2p, monkeypatch):
    monkeypatch.setattr(plan_bytes, "KEY", 0)
    monkeypatch.setattr(plan_bytes, "SAID", 0)
    made = plans(p2p)
    rows, bytes_ = sync_plan.traffic(made), plan_bytes.volume(made, {0: RowSize(1, 1), 2: RowSize(1, 1)})
    needed = sum(rows.pulls) + sum(rows.hits) + sum(rows.received) - sum(rows.gradients_received)
    assert bytes_ == (rows.transmissions, 2 * needed), f"seed {SEED}"
    assert p2p == "off" or sum(rows.sent) > 0
    assert p2p != "gradients" or sum(rows.gradients_received) > 0


@pytest.mark.parametrize("p2p", ["off", "rows", "gradients"])
def test_bytes_are_those_of_every_list_of_the_plans(p2p):
    made, sent, needed = plans(p2p), 0, 0
    for plan in made:
        for name, size in (("hold_pull", "image"), ("write_back", "image"), ("pass_pull", "value")):
            sent += sum(KEY + getattr(SIZES[int(table)], size) for table in getattr(plan, name)[0])
        given = {
            (int(table), int(key))
            for _, (tables, keys) in plan.gradient_sends
            for table, key in zip(tables, keys, strict=True)
        }
        for name in ("pass_pull", "pass_hit"):
            pairs = zip(*getattr(plan, name), strict=True)
            sent += sum(KEY + SIZES[int(t)].value for t, key in pairs if (int(t), int(key)) not in given)
        sent += sum(SAID + SIZES[table].value for table, _ in given)
        sent += sum(SAID + SIZES[int(table)].image for _, (tables, _) in plan.sends for table in tables)
        sent += sum(SIZES[int(table)].value for _, (tables, _) in plan.value_sends for table in tables)
        trained = [plan.hold_hit[0], plan.hold_pull[0], plan.pass_hit[0], plan.pass_pull[0]]
        trained += [tables for _, (tables, _) in [*plan.receives, *plan.value_receives]]
        needed += sum(2 * (KEY + SIZES[int(table)].value) for tables in trained for table in tables)
    assert plan_bytes.volume(made, SIZES) == (sent, needed), f"seed {SEED}"


def test_with_adam_a_cache_that_halves_the_rows_can_send_more_bytes():
    made = plans("off")
    rows = sync_plan.traffic(made)
    light = plan_bytes.volume(made, {0: RowSize(64, 64), 2: RowSize(64, 64)})
    heavy = plan_bytes.volume(made, {0: RowSize(64, 640), 2: RowSize(64, 640)})
    assert light.without == heavy.without > light.with_caches, f"seed {SEED}: {rows}"
    assert heavy.with_caches > heavy.without


def test_a_cache_counts_64_bytes_for_a_row_beside_its_image():
    backend = _native.CachedBackend(TableClient.local(slots=64).backend)
    backend.declare([native_spec(TableSpec(id=3, name="t", dim=16))])
    backend.cache_tables([3])
    assert backend.image_bytes(3) - row_cache.BOOKED == 4 * 16
