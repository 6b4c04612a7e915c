"""Results of `bench dataworkers` and `bench transfer` from their rounds."""

from springtide_lab.bench.core import harness
from springtide_lab.bench.dataworkers import dataworkers, transfer

TOLD = {"wanted": 0, "decisions": 5, "why": "too little to pay for them"}


def rounds(parts=None, **figures):
    named = {name.replace("_", " "): values for name, values in figures.items()}
    return harness.Rounds(figures=named, parts=parts or {})


def judge_rounds(told=TOLD, **changes):
    paces = {
        "in_process": [10.0] * 3,
        "data_set": [15.0] * 3,
        "automatic": [24.0] * 3,
        "fake_data": [30.0] * 3,
        "a_core_alone": [25.0] * 3,
    } | changes
    cpu = {name.replace("_", " "): [0.01] * 3 for name in paces if name != "a_core_alone"}
    cheap = rounds(auto=[0.0101] * 3, off=[0.01] * 3)
    result = dataworkers.judge(rounds({"cpu_s": cpu}, **paces), "60 operations move", (cheap, told))
    return {goal.id: goal for goal in result.goals}


def test_ideal_is_the_lesser_of_one_core_scaled_and_fake_data():
    assert judge_rounds()["vs_ideal"].value == 24 / 25
    assert judge_rounds(fake_data=[24.5] * 3)["vs_ideal"].value == round(24 / 24.5, 4)


def test_all_goals_are_ratios_of_neighbouring_rounds():
    goals = judge_rounds(automatic=[30.0, 24.0, 21.0], data_set=[20.0, 16.0, 14.0])
    assert goals["vs_dataset_split"].value == 1.5 and goals["vs_dataset_split"].met
    assert goals["overhead_when_cheap"].value == 1.01 and goals["overhead_when_cheap"].met


def test_overhead_is_not_measured_if_the_tuner_wants_data_workers():
    goal = judge_rounds({**TOLD, "wanted": 2})["overhead_when_cheap"]
    assert goal.value is None and not goal.met and "wanted 2 data workers" in goal.why


def test_transfer_is_compared_with_the_raw_transport_of_its_kind():
    ways = {transfer.SHM: [900.0], transfer.RAW_SHM: [1000.0], transfer.TCP: [300.0], transfer.RAW_TCP: [400.0]}
    trained = {f"{transfer.TCP}, half a core": [13.0], f"{transfer.SINGLY_TCP}, half a core": [10.0]}
    measured, fed = (
        harness.Rounds(figures=figures, parts={"cpu_s": {name: [0.001] for name in figures}})
        for figures in (ways, trained)
    )
    result = transfer.judge(measured, {"half a core": fed})
    assert [(goal.id, goal.value, goal.met) for goal in result.goals] == [
        ("shm_vs_raw_copy", 0.9, True),
        ("tcp_vs_raw", 0.75, False),
    ]
    assert result.details["fused_vs_singly"] == {"half a core": 1.3}
