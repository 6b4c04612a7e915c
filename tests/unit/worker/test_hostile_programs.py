"""Programs with changing hidden state train bit-identical models when fed by data workers."""

import pytest

from tests.unit.worker import hostile_data, hostile_forwards, hostile_loops
from tests.unit.worker.fed_runs import Run, difference
from tests.unit.worker.hostile_programs import PROGRAMS

assert hostile_forwards and hostile_loops and hostile_data, "they fill PROGRAMS"
SPLIT = {
    "Plain",
    "StraightThrough",
    "GradientReversal",
    "HookInForward",
    "InPlaceOnOwnMemory",
    "CountsCallsElsewhere",
    "KeepsWhatItMade",
    "DictOfInputs",
    "RareBranchOnChance",
    "FrozenAndUnfrozen",
    "CalledTwice",
}
"""Those of which something must move for all that: nothing that moves is touched by what they do."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_hidden_state_programs_train_the_same_model_when_fed(monkeypatch, name):
    alone = Run(PROGRAMS[name], monkeypatch, fed=False).run()
    fed = Run(PROGRAMS[name], monkeypatch, fed=True)
    ours = fed.run()
    assert not (why := difference(ours, alone)), f"{why}; {fed.told}"
    if name in SPLIT:
        assert fed.splitting._forward.split_calls > 20, fed.told
