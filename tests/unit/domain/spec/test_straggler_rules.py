import pytest

from springtide import errors
from springtide.domain.spec.job_spec import StragglerRules


def test_rules_are_changed_by_name_with_or_without_the_unit():
    rules = StragglerRules().changed({"window": 5, "every_s": 4, "floor": 0.2})
    assert (rules.window_s, rules.every_s, rules.floor, rules.deviations) == (5, 4, 0.2, 3.0)


def test_a_rule_that_does_not_exist_or_makes_no_sense_is_refused():
    with pytest.raises(errors.UnknownName, match="Did you mean 'window'"):
        StragglerRules().changed({"windows": 5})
    with pytest.raises(errors.BadInput, match="straggler rule deviations -1: must be above 0"):
        StragglerRules().changed({"deviations": -1})
