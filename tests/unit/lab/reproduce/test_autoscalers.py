"""The baseline autoscalers follow their published rules."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.spec.online_job import TrafficOutlook
from springtide.planning.online.capacity_model import CapacityCurve, CapacitySample
from springtide_lab.reproduce import autoscalers
from springtide_lab.reproduce.autoscalers import WorkerNeed, least, stabilize

FREE = np.ones(1, dtype=bool)
PLANS = st.lists(st.integers(1, 9), min_size=1, max_size=60)
KALE_A10 = CapacityCurve(kind="sync", coefficients=(0.00035, 2.5726, 0.9824, 0.02786), batch=16384)
"""Fitted by the paper's authors, for their ranking model in step on A10s."""


def column_vectors(*values):
    return tuple(np.asarray([float(value)]) for value in values)


def hpa_of(target=0.8, down_s=300.0, up_s=0.0):
    return autoscalers.Hpa(autoscalers.HpaSettings(*column_vectors(target, down_s, up_s)), most=32, every_s=15.0)


def wanted_workers(it, workers, value, free=FREE):
    return int(it.wants(np.array([workers]), np.array([float(value)]), free)[0])


def test_hpa_is_proportional_with_tolerance_and_bounded_growth():
    assert (
        wanted_workers(hpa_of(), 10, 0.8)
        == wanted_workers(hpa_of(), 10, 0.86)
        == wanted_workers(hpa_of(), 10, 0.73)
        == 10
    )
    assert wanted_workers(hpa_of(), 10, 1.0) == 13
    assert wanted_workers(hpa_of(target=0.2), 2, 1.0) == 6 and wanted_workers(hpa_of(target=0.2), 10, 1.0) == 20
    assert wanted_workers(hpa_of(target=0.1), 30, 1.0) == 32, "no more than there are"


def test_hpa_scales_down_to_the_highest_recommendation_of_five_minutes():
    it = hpa_of()
    said = [wanted_workers(it, 10, use) for use in [0.6] * 10 + [0.4] * 16]
    assert set(said[:4]) == {8}, "nothing higher was said before"
    assert said[10:16] == [8] * 6 and said[-1] == 8
    for _ in range(30):
        last = wanted_workers(it, 10, 0.4)
    assert last == 5


def test_hpa_delays_scale_up_and_ignores_workers_being_changed():
    it = hpa_of(up_s=300.0)
    said = [wanted_workers(it, 10, 0.8)] + [wanted_workers(it, 10, 1.0) for _ in range(30)]
    assert said[1] == 10 and said[-1] == 13 and said.count(10) >= 20
    assert wanted_workers(hpa_of(), 10, 1.0, np.zeros(1, dtype=bool)) == 10


def test_keda_scales_by_lag_over_threshold_up_to_one_worker_per_partition():
    def keda_of(threshold):
        return autoscalers.Keda(autoscalers.KedaSettings(*column_vectors(threshold, 0.0, 0.0)), most=1000, every_s=30.0)

    assert wanted_workers(keda_of(100.0), 10, 1_450) == 15
    assert wanted_workers(keda_of(100.0), 10, 1_050) == 10, "within the tolerance"
    assert wanted_workers(keda_of(100.0), 10, 0) == 1
    assert wanted_workers(keda_of(1.0), 700, 1e9) == autoscalers.PARTITIONS


def test_autopilot_uses_its_windows_peak_and_halves_surplus_each_hour():
    it = autoscalers.Autopilot(autoscalers.AutopilotSettings(*column_vectors(0.5, 100, 600)), most=32)
    assert wanted_workers(it, 10, 8) == 16
    workers, said = 16, []
    for _ in range(36):
        workers = wanted_workers(it, workers, 2)
        said.append(workers)
    assert said[0] == 16 and said[11] >= 15, "the highest of the last hour"
    assert 4 <= said[23] <= 11 and said[35] < said[23]


def test_madu_plans_the_upper_end_of_a_linear_forecast():
    assert autoscalers.madu_slope([CapacitySample(1, 100.0), CapacitySample(2, 200.0)]) == pytest.approx(100.0)
    outlook = TrafficOutlook(step_s=600.0, mean=(100.0, 300.0, 900.0), high=(150.0, 400.0, 950.0))
    assert autoscalers.madu_workers(outlook, autoscalers.MaduSettings(0.0, 600.0), per_worker=100.0, most=32) == 3
    assert autoscalers.madu_workers(outlook, autoscalers.MaduSettings(1.0, 600.0), per_worker=100.0, most=32) == 4
    assert autoscalers.madu_workers(outlook, autoscalers.MaduSettings(0.0, 1800.0), per_worker=100.0, most=6) == 6


def test_kale_plans_the_fewest_workers_that_keep_up_and_drops_short_changes():
    capacity = np.arange(9) * 100.0
    outlook = TrafficOutlook(step_s=600.0, mean=(350.0, 350.0, 450.0, 550.0, 550.0, 550.0), high=(800.0,) * 6)
    settings = autoscalers.KaleSettings(1, 900.0, False, 0.0, 0.0, 1200.0)
    planned = autoscalers.kale_plan(outlook, settings, workers=4, capacity=capacity)
    assert set(planned.tolist()) == {4, 6} and planned[0] == 4 and planned[-1] == 6
    at_once = autoscalers.kale_plan(outlook, settings._replace(upper=1.0), workers=8, capacity=capacity)
    assert set(at_once.tolist()) == {8}, "no number of workers trains more than 800"
    slow = autoscalers.KaleSettings(1, 1500.0, True, 0.0, 0.0, 1200.0)
    ramp = TrafficOutlook(step_s=600.0, mean=tuple(50.0 + 100 * step for step in range(7)), high=(1.0,) * 7)
    once, calm = (
        autoscalers.kale_plan(ramp, slow._replace(repeated=again), workers=1, capacity=capacity)
        for again in (False, True)
    )
    assert len(set(calm.tolist())) < len(set(once.tolist())) < 7


def test_kale_falls_back_to_utilization_when_samples_wait():
    def said(lag_s, utilization):
        values = (np.array([4]), np.array([6]), *column_vectors(lag_s, utilization))
        return int(autoscalers.kale_workers(*values, fallback_s=np.array([1200.0]), most=32)[0])

    assert said(600, 1.0) == 4 and said(1500, 0.5) == 4 and said(1500, 1.0) == 8


def test_stabilize_matches_the_papers_example():
    assert stabilize([4, 4, 5, 6, 6, 6], step_s=600, short_s=900) == (4, 4, 6, 6, 6, 6)


def test_short_dip_is_bridged_and_a_short_peak_left_to_the_queue():
    assert stabilize([6, 6, 4, 6, 6], step_s=300, short_s=600) == (6, 6, 6, 6, 6)
    assert stabilize([4, 4, 7, 4, 4], step_s=300, short_s=600) == (4, 4, 4, 4, 4)


def test_steps_as_long_as_the_minimum_are_unchanged():
    plan = (4, 5, 4, 6, 4)
    assert stabilize(plan, step_s=600, short_s=600) == plan


def test_change_smaller_than_the_minimum_is_ignored():
    assert stabilize([4, 4, 5, 9, 9], step_s=300, short_s=600, change=2) == (4, 4, 5, 9, 9)


@given(PLANS, st.integers(1, 5))
def test_stabilized_plan_keeps_length_and_values_with_no_more_changes(plan, short):
    calm = stabilize(plan, step_s=1.0, short_s=float(short))
    assert len(calm) == len(plan)
    assert len(list(groupby(calm))) <= len(list(groupby(plan)))
    assert set(calm) <= set(plan)
    assert calm[0] == plan[0] and calm[-1] == plan[-1]


def test_papers_capacity_curve_peaks_at_ten_workers_for_30000_per_second():
    assert KALE_A10(10) == pytest.approx(30_005, abs=1)
    assert least(KALE_A10, 30_000, most=32) == WorkerNeed(10, True)
    assert KALE_A10.peak(32) == 10
    assert least(KALE_A10, 34_000, most=32) == WorkerNeed(10, False)


@given(st.floats(0, 5e4), st.integers(1, 40))
def test_no_fewer_workers_than_the_computed_least_keep_up(traffic, most):
    need = least(KALE_A10, traffic, most=most)
    assert 1 <= need.workers <= most
    assert all(KALE_A10(fewer) <= traffic for fewer in range(1, need.workers))
    assert need.enough == (KALE_A10(need.workers) > traffic)
