"""The mark on a function: it does nothing by itself, and a script's own marked functions can be sent along."""

import pickle
import sys

import cloudpickle

import springtide
from springtide.dataworker.split.recorder import stateless


@springtide.stateless
def doubled(number):
    """Twice."""
    return 2 * number


def test_the_mark_changes_nothing_by_itself():
    assert doubled(4) == 8 and doubled.__doc__ == "Twice." and doubled.__springtide_stateless__


def test_whoever_listens_answers_and_only_meanwhile():
    with stateless.heard_by(lambda function, args, kwargs: ("heard", function(*args, **kwargs))):
        assert doubled(4) == ("heard", 8)
        with stateless.heard_by(None):
            assert doubled(4) == 8
    assert doubled(4) == 8


def test_a_marked_function_of_a_script_travels_by_value():
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    try:
        sent = cloudpickle.dumps(doubled)
    finally:
        cloudpickle.unregister_pickle_by_value(here)
    assert pickle.loads(sent)(4) == 8
