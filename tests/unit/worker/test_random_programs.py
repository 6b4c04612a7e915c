"""Random programs with hidden state train the same model when fed by data workers."""

from dataclasses import dataclass

import hypothesis
import pytest

from tests.unit.worker.fed_runs import Run, difference
from tests.unit.worker.random_programs import RandomProgram, Recipe, recipes

DATA_AND_STATE_CHANGE = Recipe([("places", "environment")], changes=[(18, "data grows", 2), (18, "environment", 11)])
"""Its loop needs a leaf that was not sent, of a batch that came before the data set changed."""
ANY = [one for one in hypothesis.HealthCheck if one.name != "return_value"]


@dataclass(frozen=True)
class Comparison:
    """Results of training a program alone and with data workers."""

    difference: str = ""
    error: str = ""
    """What both raised."""
    answered: int = 0
    """Batches of which calls in forward() were answered."""
    gave_up: str = ""
    """Why data workers were given up in the middle."""


def compare(recipe):
    with pytest.MonkeyPatch.context() as patch:
        _, theirs, error = run(recipe, patch, fed=False)
        fed, ours, other = run(recipe, patch, fed=True)
    if error or other:
        return Comparison("" if error == other else f"{other} instead of {error}", error)
    forward = fed.splitting._forward
    why = difference(ours, theirs)
    return Comparison(why and f"{why}; {fed.told}", "", forward.split_calls if forward is not None else 0, fed.wrong)


def run(recipe, patch, *, fed):
    """Run a program; return the run, its result and its error."""
    made = Run(lambda: RandomProgram(recipe), patch, fed=fed)
    try:
        return made, made.run(), ""
    except Exception as error:
        return made, None, f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"


@hypothesis.settings(max_examples=12, deadline=None, suppress_health_check=ANY)
@hypothesis.example(DATA_AND_STATE_CHANGE)
@hypothesis.given(recipes())
def test_random_program_trains_the_same_model_when_fed(recipe):
    assert not (why := compare(recipe).difference), why


@pytest.mark.soak
@pytest.mark.timeout(7200)
@hypothesis.settings(max_examples=3000, deadline=None, suppress_health_check=ANY)
@hypothesis.given(recipes())
def test_many_random_programs_train_the_same_model_when_fed(recipe):
    assert not (why := compare(recipe).difference), why
