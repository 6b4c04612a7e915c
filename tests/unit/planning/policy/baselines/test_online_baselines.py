"""The autoscalers that ours is compared with keep to their published rules."""

import numpy as np
import pytest

from springtide.domain.data.online_view import TrafficOutlook
from springtide.planning.online.capacity.capacity_model import CapacitySample
from springtide.planning.policy.baselines import autopilot, hpa, kale, keda, madu

FREE = np.ones(1, dtype=bool)


def one(*values):
    return tuple(np.asarray([float(value)]) for value in values)


def hpa_of(target=0.8, down_s=300.0, up_s=0.0):
    return hpa.Hpa(hpa.HpaSettings(*one(target, down_s, up_s)), most=32, every_s=15.0)


def wants(it, workers, value, free=FREE):
    return int(it.wants(np.array([workers]), np.array([float(value)]), free)[0])


def test_hpa_is_proportional_has_a_tolerance_and_adds_at_most_four_or_as_many_again():
    assert wants(hpa_of(), 10, 0.8) == wants(hpa_of(), 10, 0.86) == wants(hpa_of(), 10, 0.73) == 10
    assert wants(hpa_of(), 10, 1.0) == 13
    assert wants(hpa_of(target=0.2), 2, 1.0) == 6 and wants(hpa_of(target=0.2), 10, 1.0) == 20
    assert wants(hpa_of(target=0.1), 30, 1.0) == 32, "no more than there are"


def test_hpa_goes_down_to_the_highest_recommendation_of_five_minutes():
    it = hpa_of()
    said = [wants(it, 10, use) for use in [0.6] * 10 + [0.4] * 16]
    assert set(said[:4]) == {8}, "nothing higher was said before"
    assert said[10:16] == [8] * 6 and said[-1] == 8
    for _ in range(30):
        last = wants(it, 10, 0.4)
    assert last == 5


def test_hpa_waits_on_the_way_up_where_it_is_told_to_and_hears_nothing_of_workers_that_are_being_changed():
    it = hpa_of(up_s=300.0)
    said = [wants(it, 10, 0.8)] + [wants(it, 10, 1.0) for _ in range(30)]
    assert said[1] == 10 and said[-1] == 13 and said.count(10) >= 20
    assert wants(hpa_of(), 10, 1.0, np.zeros(1, dtype=bool)) == 10


def test_keda_wants_as_many_workers_as_lag_is_multiples_of_its_threshold_up_to_one_a_partition():
    def keda_of(threshold):
        return keda.Keda(keda.KedaSettings(*one(threshold, 0.0, 0.0)), most=1000, every_s=30.0)

    assert wants(keda_of(100.0), 10, 1_450) == 15
    assert wants(keda_of(100.0), 10, 1_050) == 10, "within the tolerance"
    assert wants(keda_of(100.0), 10, 0) == 1
    assert wants(keda_of(1.0), 700, 1e9) == keda.PARTITIONS


def test_autopilot_takes_the_highest_of_its_window_and_gives_back_half_of_what_is_too_much_in_an_hour():
    it = autopilot.Autopilot(autopilot.AutopilotSettings(*one(0.5, 100, 600)), most=32)
    assert wants(it, 10, 8) == 16
    workers, said = 16, []
    for _ in range(36):
        workers = wants(it, workers, 2)
        said.append(workers)
    assert said[0] == 16 and said[11] >= 15, "the highest of the last hour"
    assert 4 <= said[23] <= 11 and said[35] < said[23]


def test_madu_plans_the_upper_end_of_a_forecast_by_a_straight_line():
    assert madu.slope([CapacitySample(1, 100.0), CapacitySample(2, 200.0)]) == pytest.approx(100.0)
    outlook = TrafficOutlook(step_s=600.0, mean=(100.0, 300.0, 900.0), high=(150.0, 400.0, 950.0))
    assert madu.wants(outlook, madu.MaduSettings(0.0, 600.0), per_worker=100.0, most=32) == 3
    assert madu.wants(outlook, madu.MaduSettings(1.0, 600.0), per_worker=100.0, most=32) == 4
    assert madu.wants(outlook, madu.MaduSettings(0.0, 1800.0), per_worker=100.0, most=6) == 6


def test_kale_plans_the_fewest_workers_that_keep_up_and_leaves_out_what_is_short():
    capacity = np.arange(9) * 100.0
    outlook = TrafficOutlook(step_s=600.0, mean=(350.0, 350.0, 450.0, 550.0, 550.0, 550.0), high=(800.0,) * 6)
    settings = kale.KaleSettings(1, 900.0, False, 0.0, 0.0, 1200.0)
    planned = kale.plan(outlook, settings, workers=4, capacity=capacity)
    assert set(planned.tolist()) == {4, 6} and planned[0] == 4 and planned[-1] == 6
    at_once = kale.plan(outlook, settings._replace(upper=1.0), workers=8, capacity=capacity)
    assert set(at_once.tolist()) == {8}, "no number of workers trains more than 800"
    slow = kale.KaleSettings(1, 1500.0, True, 0.0, 0.0, 1200.0)
    ramp = TrafficOutlook(step_s=600.0, mean=tuple(50.0 + 100 * step for step in range(7)), high=(1.0,) * 7)
    once, calm = (
        kale.plan(ramp, slow._replace(repeated=again), workers=1, capacity=capacity) for again in (False, True)
    )
    assert len(set(calm.tolist())) < len(set(once.tolist())) < 7


def test_kale_falls_back_on_utilization_when_samples_wait():
    def said(lag_s, utilization):
        values = (np.array([4]), np.array([6]), *one(lag_s, utilization))
        return int(kale.wants(*values, fallback_s=np.array([1200.0]), most=32)[0])

    assert said(600, 1.0) == 4 and said(1500, 0.5) == 4 and said(1500, 1.0) == 8
