"""The scheduler's interface: refusals, and small cases with a known answer."""

import numpy as np
import pytest

from springtide import _native, errors
from springtide.data import shards
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.table_client import TableClient, native_spec
from springtide.embedding.schedule import scheduler as schedulers
from springtide.embedding.schedule.scheduler import KEY, SAID, RowSize
from springtide.worker.cache import coordinator
from springtide_lab.bench.cache import plan_traffic
from tests.inspected_scheduler import InspectedScheduler


def batch(*ids, table=0):
    return [schedulers.FeatureIds(table, np.array(ids, dtype=np.int64))], len(ids)


def keys(listed):
    return listed[1].tolist()


def scheduler(**changed):
    return InspectedScheduler(
        schedulers.ScheduleSettings(**{"workers": 2, "capacity_rows": 10, "policy": "contiguous", **changed})
    )


@pytest.mark.parametrize(("samples", "workers"), [(7, 3), (10, 4), (24, 5), (3, 3)])
def test_contiguous_policy_equals_an_unscheduled_group(samples, workers):
    ranks = scheduler(workers=workers).schedule(*batch(*range(samples))).rank_of_sample
    parts = [shards.rank_part(samples, rank=rank, workers=workers) for rank in range(workers)]
    assert ranks.tolist() == [rank for rank, part in enumerate(parts) for _ in range(part.stop - part.start)]


def test_row_trained_repeatedly_by_one_worker_is_never_sent():
    of = scheduler()
    first = of.schedule(*batch(1, 2))
    again = [of.schedule(*batch(1, 2)) for _ in range(3)]
    assert plan_traffic.traffic(first.plans).transmissions == 2  # both rows are pulled once
    assert all(plan_traffic.traffic(done.plans).transmissions == 0 for done in again)
    assert [keys(plan.hold_hit) for plan in again[-1].plans] == [[1], [2]]


def test_row_trained_next_by_another_worker_is_written_back_and_pulled():
    of = scheduler()
    of.schedule(*batch(1, 2))
    swapped = of.schedule(*batch(2, 1)).plans
    assert [keys(plan.write_back) for plan in swapped] == [[1], [2]]
    assert [keys(plan.drop) for plan in swapped] == [[1], [2]]
    assert [keys(plan.hold_pull) for plan in swapped] == [[2], [1]]


def test_planned_row_is_written_back_even_if_absent_from_the_current_batch():
    of = scheduler()
    of.schedule(*batch(1, 2))
    of.schedule(*batch(3, 4))  # 1 rests in the first worker's cache
    assert keys(of.schedule(*batch(3, 1)).plans[0].write_back) == [1]


def test_p2p_row_goes_directly_to_its_next_trainer():
    of = scheduler(p2p="rows")
    of.schedule(*batch(1, 2))
    plans = of.schedule(*batch(3, 1)).plans
    assert [(peer, keys(rows)) for peer, rows in plans[0].sends] == [(1, [1])]
    assert [(peer, keys(rows)) for peer, rows in plans[1].receives] == [(0, [1])]
    assert not keys(plans[0].write_back) and not keys(plans[1].hold_pull)
    assert plan_traffic.traffic(plans).transmissions == 2  # row 3 is pulled, row 1 sent


def test_p2p_row_with_several_trainers_goes_through_the_servers():
    of = scheduler(p2p="rows")
    of.schedule(*batch(1, 2))
    plans = of.schedule(*batch(1, 1)).plans
    assert keys(plans[0].write_back) == [1] and keys(plans[0].pass_hit) == [1] and keys(plans[1].pass_pull) == [1]
    assert not plans[0].sends and of.cached(0)[1].tolist() == []


def ends(listed):
    return [(peer, keys(rows)) for peer, rows in listed]


def test_gradient_mode_owner_of_a_shared_row_keeps_and_sums_it():
    of = scheduler(p2p="gradients")
    of.schedule(*batch(1, 2))
    owner, other = of.schedule(*batch(1, 1)).plans
    assert keys(owner.hold_hit) == [1] and ends(owner.value_sends) == [(1, [1])]
    assert ends(owner.gradient_receives) == [(1, [1])] and ends(other.gradient_sends) == [(0, [1])]
    assert other.gradients == owner.gradients == 0 and of.cached(0)[1].tolist() == [1]
    assert plan_traffic.traffic([owner, other]).transmissions == 2


def test_gradient_mode_assigns_uncached_rows_to_distributed_homes():
    of = scheduler(p2p="gradients", workers=3)
    features = [schedulers.FeatureIds(table, np.array([1, 1, 5])) for table in (0, 1)]
    first, second, third = of.schedule(features, 3).plans
    assert first.hold_pull[0].tolist() == [0] and second.hold_pull[0].tolist() == [1]
    assert first.pass_pull[0].tolist() == [1] and second.pass_pull[0].tolist() == [0]
    assert first.gradients == second.gradients == 0 and third.sent == 0


def test_gradient_mode_idle_owner_sends_row_to_one_and_value_to_others():
    of = scheduler(p2p="gradients", workers=3)
    of.schedule(*batch(7, 8, 9))
    plans = of.schedule(*batch(9, 9, 8)).plans
    assert ends(plans[2].sends) == [(0, [9])] and ends(plans[2].value_sends) == [(1, [9])]
    assert 9 in keys(plans[2].drop) and ends(plans[1].gradient_sends) == [(0, [9])]


def test_row_trained_by_many_workers_is_summed_by_servers():
    of = scheduler(p2p="gradients", p2p_trainers=2, workers=3)
    plans = of.schedule(*batch(1, 1, 1)).plans
    assert [plan.gradients for plan in plans] == [1, 1, 1] and not any(plan.sent for plan in plans)


def test_least_recently_trained_row_is_evicted_and_written_back():
    of = scheduler(workers=1, capacity_rows=2)
    for ids in ((1,), (2,), (1,)):
        of.schedule(*batch(*ids))
    plan = of.schedule(*batch(3)).plans[0]
    assert keys(plan.drop) == keys(plan.write_back) == [2]


def test_batch_larger_than_the_cache_bypasses_it_for_the_rest():
    plan = scheduler(workers=1, capacity_rows=1).schedule(*batch(1, 2, 3)).plans[0]
    assert keys(plan.hold_pull) == [1] and keys(plan.pass_pull) == [2, 3]


def test_flushed_rows_are_not_written_back_again():
    of = scheduler()
    of.schedule(*batch(1, 2))
    of.flushed(1)
    plans = of.schedule(*batch(2, 1)).plans
    assert [keys(plan.write_back) for plan in plans] == [[], []]


def test_late_flush_notice_keeps_rows_trained_in_the_next_step_dirty():
    of = scheduler()
    of.schedule(*batch(1, 2))
    of.schedule(*batch(1, 3))
    of.flushed(1)
    dirty = {int(key): bool(d) for worker in (0, 1) for _, key, d in zip(*of.cached(worker), strict=True)}
    assert dirty == {1: True, 2: False, 3: True}


def test_without_a_known_next_batch_every_trained_row_is_written_back():
    of = scheduler(on_demand=False)
    of.schedule(*batch(1, 2))
    assert [keys(plan.write_back) for plan in of.schedule(*batch(3, 4)).plans] == [[1], [2]]


def test_ids_equal_as_float32_are_distinct():
    ids = (2**24, 2**24 + 1, -(2**53), -(2**53) - 1, 2**63 - 1, -(2**63))
    assert scheduler().schedule(*batch(*ids)).distinct == 6


def test_same_id_in_two_tables_is_two_rows():
    features = [schedulers.FeatureIds(table, np.array([7, 8])) for table in (0, 1)]
    assert scheduler().schedule(features, 2).distinct == 4


def test_uncached_tables_are_not_planned():
    features = [schedulers.FeatureIds(table, np.array([7, 8])) for table in (0, 1)]
    assert scheduler(tables=(1,)).schedule(features, 2).distinct == 2


def test_only_scored_tables_attract_samples_to_a_worker():
    of = scheduler(policy="laia")
    both = [schedulers.FeatureIds(table, np.array([5, 6])) for table in (0, 1)]
    first = of.schedule(both, 2).rank_of_sample.tolist()
    crossed = [schedulers.FeatureIds(0, np.array([5, 6])), schedulers.FeatureIds(1, np.array([6, 5]))]
    assert of.schedule(crossed, 2, scored=[1]).rank_of_sample.tolist() == first[::-1]


def stream(of, steps, *, workers, each=32):
    """Table 0 has three equally frequent ids; table 1 has a new id per sample."""
    random = np.random.default_rng(7)
    for step in range(steps):
        samples = workers * each
        new = np.arange(samples) + step * samples
        of.schedule([schedulers.FeatureIds(0, random.integers(0, 3, samples)), schedulers.FeatureIds(1, new)], samples)


def test_infrequency_is_low_for_few_ids_and_high_for_many():
    of = scheduler(workers=4, policy="laia", capacity_rows=1000, profile_every=1)
    stream(of, 10, workers=4)
    assert of.infrequency(0) < 0.1 and of.infrequency(1) == 1.0 and of.infrequency(99) == 1.0


def test_frequency_statistics_are_forgotten_on_an_endless_stream():
    of = scheduler(workers=4, policy="laia", capacity_rows=1000, profile_every=1)
    stream(of, 5, workers=4)
    for step in range(100):
        fresh = np.arange(128) + 10_000 + step * 128
        of.schedule([schedulers.FeatureIds(0, fresh), schedulers.FeatureIds(1, fresh)], 128)
    assert of.infrequency(0) == 1.0


def test_highest_degree_table_is_scored():
    of = scheduler(policy="laia", capacity_rows=1000, profile_every=1)
    stream(of, 5, workers=2)
    first = [schedulers.FeatureIds(0, np.array([0, 1])), schedulers.FeatureIds(1, np.array([-5, -6]))]
    ranks = of.schedule(first, 2).rank_of_sample.tolist()
    crossed = [schedulers.FeatureIds(0, np.array([1, 0])), schedulers.FeatureIds(1, np.array([-6, -5]))]
    assert of.schedule(crossed, 2, best_tables=1).rank_of_sample.tolist() == ranks[::-1]


def test_without_scored_tables_batches_stay_even():
    of = scheduler(workers=4, policy="laia")
    assert np.bincount(of.schedule(*batch(*range(40)), best_tables=0).rank_of_sample).tolist() == [10] * 4


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_scheduler_threads_give_one_result(threads):
    def ranks():
        of = scheduler(workers=5, policy="laia", capacity_rows=200, threads=threads)
        random = np.random.default_rng(3)
        seen = []
        for _ in range(5):
            features = [schedulers.FeatureIds(table, random.zipf(1.3, 83) % 500) for table in range(6)]
            done = of.schedule(features, 83)
            seen.append(done.rank_of_sample.tolist())
            assert np.bincount(done.rank_of_sample, minlength=5).tolist() == [17, 17, 17, 16, 16]
        return seen, [of.cached(worker)[1].tolist() for worker in range(5)]

    assert ranks() == ranks()


def test_ties_are_broken_by_seed_and_not_by_rank():
    def first_ranks(seed):
        return scheduler(workers=8, policy="laia", seed=seed).schedule(*batch(*range(64))).rank_of_sample.tolist()

    assert first_ranks(1) == first_ranks(1) != first_ranks(2)
    assert len(set(first_ranks(1)[:16])) > 4


def test_scheduler_accepts_128_workers_and_refuses_129():
    assert len(scheduler(workers=128, policy="laia").schedule(*batch(*range(256))).plans) == 128
    with pytest.raises(errors.BadInput, match="1 to 128 workers, got 129"):
        scheduler(workers=129)


@pytest.mark.parametrize(
    "features, samples, says",
    [
        ([schedulers.FeatureIds(3, np.array([1, 2]))], 3, "feature 0 .table 3. has 2 ids for 3 samples"),
        ([schedulers.FeatureIds(0, np.array([1, 2]), np.array([0, 2]))], 2, "offsets must rise"),
        ([schedulers.FeatureIds(0, np.array([1, 2]), np.array([0, 3, 2]))], 2, "offsets must rise"),
        ([schedulers.FeatureIds(0, np.array([1, 2]), np.array([1, 1, 2]))], 2, "offsets must rise"),
    ],
)
def test_features_that_do_not_fit_the_batch_are_refused(features, samples, says):
    of = scheduler()
    with pytest.raises(errors.BadInput, match=says):
        of.schedule(features, samples)
    assert of.step == 0


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"policy": "laja"}, "laia"),
        ({"capacity_rows": -1}, "capacity_rows=-1"),
        ({"threads": 0}, "1 to 256 threads"),
    ],
)
def test_invalid_scheduler_settings_are_refused(changed, says):
    with pytest.raises(errors.BadInput, match=says):
        scheduler(**changed)


def test_flush_of_an_unknown_step_is_refused():
    with pytest.raises(errors.BadInput, match="only 0 steps"):
        scheduler().flushed(1)


def test_cleared_caches_are_empty_and_steps_continue():
    of = scheduler()
    of.schedule(*batch(1, 2))
    of.clear()
    done = of.schedule(*batch(1, 2))
    assert done.step == 2 and [keys(plan.hold_pull) for plan in done.plans] == [[1], [2]]


def schedules(tables, *, each_ms=0.1, base_ms=0.0, rest_ms=2.0, count=10):
    allocate_s = (base_ms + each_ms * tables) / 1e3
    return [schedulers.ScheduleTime(units=tables, allocate_s=allocate_s, rest_s=rest_ms / 1e3)] * count


def units_within_budget(budget_ms, history, tables=26):
    return schedulers.units_within(budget_ms / 1e3, history, most=tables, least=min(tables, schedulers.LEAST))


def test_all_tables_are_scored_given_enough_time():
    assert units_within_budget(100, schedules(26)) == 26


def test_first_schedule_scores_all_tables():
    assert units_within_budget(0.001, []) == 26


def test_scheduling_time_left_by_the_plan_limits_scored_tables():
    assert (
        units_within_budget(3.0, schedules(26)) == 7
    )  # 2.7 ms without the margin, 0.7 ms beside the plan, 0.1 ms a table


def test_few_best_tables_are_scored_even_without_time():
    assert units_within_budget(2.0, schedules(26)) == schedulers.LEAST
    assert units_within_budget(2.0, schedules(2, count=3), tables=2) == 2


def test_fixed_allocation_time_is_learned_from_two_sizes():
    seen = schedules(26, base_ms=0.5) + schedules(7, base_ms=0.5)
    assert units_within_budget(3.5, seen) == 6


def test_larger_time_budget_restores_tables():
    assert units_within_budget(10.0, schedules(3)) == 26


def test_old_schedule_times_are_forgotten():
    assert units_within_budget(3.0, schedules(26, rest_ms=50, count=100) + schedules(26, count=schedulers.MEMORY)) == 7


def test_adaptive_scoring_converges_within_the_time_budget():
    history, chosen = [], []
    for _ in range(60):
        tables = units_within_budget(3.0, history)
        history += schedules(tables, base_ms=0.3, count=1)
        chosen.append(tables)
    assert all(each.allocate_s + each.rest_s <= 0.003 for each in history[10:])
    assert chosen[-1] == chosen[-10] and chosen[-1] >= 3


def test_stage_times_of_a_schedule_are_separated():
    seen = schedulers.took({"read": 1.0, "allocate": 2.0, "plan": 3.0}, units=4)
    assert seen == schedulers.ScheduleTime(units=4, allocate_s=2.0, rest_s=4.0)


SEED = 7
SIZES = {0: RowSize(64, 64), 2: RowSize(32, 100)}


def plans(p2p, batches=12):
    """Of the last of some batches, users of which come back."""
    chance = np.random.default_rng(SEED)
    settings = schedulers.ScheduleSettings(
        workers=3, capacity_rows=60, tables=(0, 2), policy="laia", p2p=p2p, seed=SEED
    )
    scheduler = InspectedScheduler(settings)
    for _ in range(batches):
        ids = (40 * chance.random(30) ** 2).astype(np.int64)
        made = scheduler.schedule([schedulers.FeatureIds(0, ids, None), schedulers.FeatureIds(2, ids // 2, None)], 30)
    return made.plans


@pytest.mark.parametrize("p2p", ["off", "rows", "gradients"])
def test_plan_bytes_equal_counted_rows_for_one_byte_rows(p2p, monkeypatch):
    monkeypatch.setattr(schedulers, "KEY", 0)
    monkeypatch.setattr(schedulers, "SAID", 0)
    made = plans(p2p)
    rows, bytes_ = plan_traffic.traffic(made), schedulers.volume(made, {0: RowSize(1, 1), 2: RowSize(1, 1)})
    needed = sum(plan.pulls + plan.hits + plan.received - plan.gradients_received for plan in made)
    assert bytes_ == (rows.transmissions, 2 * needed), f"seed {SEED}"
    assert p2p == "off" or sum(rows.sent) > 0
    assert p2p != "gradients" or sum(plan.gradients_received for plan in made) > 0


@pytest.mark.parametrize("p2p", ["off", "rows", "gradients"])
def test_plan_bytes_cover_every_list_of_the_plans(p2p):
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
    assert schedulers.volume(made, SIZES) == (sent, needed), f"seed {SEED}"


def test_with_adam_a_cache_that_halves_the_rows_can_send_more_bytes():
    made = plans("off")
    rows = plan_traffic.traffic(made)
    light, without = schedulers.volume(made, {0: RowSize(64, 64), 2: RowSize(64, 64)})
    heavy, also_without = schedulers.volume(made, {0: RowSize(64, 640), 2: RowSize(64, 640)})
    assert heavy > without == also_without > light, f"seed {SEED}: {rows}"


def test_cached_row_costs_56_bytes_beside_its_image():
    backend = _native.CachedBackend(TableClient.local(slots=64).backend)
    backend.declare([native_spec(TableSpec(id=3, name="t", dim=16))])
    backend.cache_tables([3])
    assert backend.image_bytes(3) - coordinator.BOOKED == 4 * 16
