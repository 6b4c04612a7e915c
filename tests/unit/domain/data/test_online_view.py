"""The autoscaler's view of an online job."""

import pytest

from springtide import errors
from springtide.domain.spec.online_job import OnlineRules, TrafficOutlook


def test_traffic_outlook_needs_equal_lengths_and_positive_steps():
    assert TrafficOutlook(step_s=600, mean=(1.0, 2.0), high=(2.0, 3.0)).mean == (1.0, 2.0)
    for step_s, mean, high in ((600, (1.0,), ()), (0, (1.0,), (1.0,)), (600, (), ())):
        with pytest.raises(errors.BadInput, match="an outlook of"):
            TrafficOutlook(step_s=step_s, mean=mean, high=high)


def test_impossible_online_rules_are_refused():
    assert OnlineRules().slo_lag_s == 1200
    for wrong in ({"fewest": 0}, {"fewest": 9, "most": 8}, {"slo_lag_s": 0}, {"pause_s": -1}):
        with pytest.raises(errors.BadInput, match="online"):
            OnlineRules(**wrong)
