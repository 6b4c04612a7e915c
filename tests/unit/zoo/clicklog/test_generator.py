"""The generated click log: equal for any slice, correlated, with a known truth that can drift."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.zoo import metrics
from springtide.zoo.clicklog import generator, population
from springtide.zoo.clicklog.generator import Generator
from springtide.zoo.clicklog.population import LogSpec

ROOT = pathlib.Path(__file__).resolve().parents[4]
FIELDS = (500, 200, 20, 30, 12, 50)
SMALL = LogSpec(seed=11, cardinalities=FIELDS, dense=5, history=6)


@pytest.fixture(scope="module")
def still_generator():
    return Generator(SMALL)


@pytest.fixture(scope="module")
def drifting():
    return Generator(LogSpec(seed=11, cardinalities=FIELDS, dense=5, drift_per_hour=0.5, events_per_s=100.0))


def same(a, b):
    for name in a.__slots__:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


@settings(max_examples=30, deadline=None)
@given(start=st.integers(0, 10**9), length=st.integers(1, 300), data=st.data())
def test_slice_is_the_same_for_any_block_size(still_generator, drifting, start, length, data):
    cut = data.draw(st.integers(0, length))
    for made in (still_generator, drifting):
        whole = made.between(start, start + length)
        left, right = made.between(start, start + cut), made.between(start + cut, start + length)
        for name in whole.__slots__:
            parts = np.concatenate([getattr(left, name), getattr(right, name)])
            np.testing.assert_array_equal(getattr(whole, name), parts, err_msg=f"{name}, {start}+{cut}/{length}")


def test_samples_do_not_depend_on_their_block(drifting):
    index = np.arange(20_000, dtype=np.int64)
    whole = drifting.rows(index)
    order = np.random.default_rng(0).permutation(len(index))
    shuffled = drifting.rows(order)
    for name in whole.__slots__:
        np.testing.assert_array_equal(getattr(whole, name)[order], getattr(shuffled, name), err_msg=name)


def test_equal_specs_give_equal_logs_and_seeds_differ(still_generator):
    same(still_generator.between(0, 100), Generator(SMALL).between(0, 100))
    other = Generator(LogSpec(seed=12, cardinalities=FIELDS, dense=5, history=6)).between(0, 100)
    assert not np.array_equal(still_generator.between(0, 100).sparse, other.sparse)


def test_ids_fill_their_fields_with_a_zipf_distribution(still_generator):
    sparse = still_generator.between(0, 50_000).sparse
    assert (sparse >= 0).all()
    assert (sparse < np.array(FIELDS)).all()
    counts = np.sort(np.bincount(sparse[:, 0], minlength=FIELDS[0]))[::-1]
    assert counts[0] > 20 * counts[100] / 10 > 0
    slope = np.polyfit(np.log(np.arange(2, 100) + 1), np.log(counts[2:100]), 1)[0]
    assert slope == pytest.approx(-SMALL.zipf, abs=0.25)


def test_user_and_item_fields_correlate_and_context_fields_do_not(still_generator):
    sparse = still_generator.between(0, 40_000).sparse
    kinds = population.field_kinds(len(FIELDS))
    assert kinds == ("user", "item", "item", "user", "context", "item")

    def shared_information(a, b):
        joint = np.zeros((FIELDS[a], FIELDS[b]))
        np.add.at(joint, (sparse[:, a], sparse[:, b]), 1 / len(sparse))
        apart = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
        seen = joint > 0
        by_chance = (FIELDS[a] - 1) * (FIELDS[b] - 1) / (2 * len(sparse))
        return (joint[seen] * np.log(joint[seen] / apart[seen])).sum() - by_chance

    assert shared_information(2, 5) > 0.05  # two attributes of the item
    assert shared_information(3, 2) > 0.01  # users choose what suits them
    assert abs(shared_information(3, 4)) < 0.002  # contexts are chance
    assert abs(shared_information(2, 4)) < 0.002


def test_users_see_items_that_match_their_taste():
    picky = Generator(LogSpec(seed=1, cardinalities=FIELDS, taste=1.0))
    users = np.arange(FIELDS[0], dtype=np.int64).repeat(20)
    event = np.arange(len(users), dtype=np.int64)
    _, match = population.choose(picky.world, users, event, 5)
    careless = Generator(LogSpec(seed=1, cardinalities=FIELDS, taste=0.5))
    _, chance = population.choose(careless.world, users, event, 5)
    assert match.mean() > chance.mean() + 0.3


def test_click_and_conversion_rates_are_as_requested():
    for noise in (0.0, 0.3):
        spec = LogSpec(cardinalities=FIELDS, click_rate=0.1, conversion_rate=0.2, label_noise=noise)
        rows = Generator(spec).between(0, 100_000)
        assert rows.click.mean() == pytest.approx(0.1, abs=0.01)
        assert rows.conversion.sum() / rows.click.sum() == pytest.approx(0.2, abs=0.03)
        assert rows.probability.mean() == pytest.approx(rows.click.mean(), abs=0.005)
        assert (rows.conversion <= rows.click).all()


def test_labels_follow_the_true_probabilities(still_generator):
    rows = still_generator.between(0, 100_000)
    order = np.argsort(rows.probability)
    for part in np.array_split(order, 10):
        assert rows.click[part].mean() == pytest.approx(rows.probability[part].mean(), abs=0.02)


def test_high_ratings_count_as_clicks(still_generator):
    rows = still_generator.between(0, 5_000)
    assert set(np.unique(rows.rating)) == {1, 2, 3, 4, 5}
    np.testing.assert_array_equal(rows.rating >= 4, rows.click > 0)


def best_auc(made, start, stop):
    true = made.between(start, stop).probability
    return generator.expected_auc(true, true)


def test_known_best_auc_is_reached_by_the_true_probabilities(still_generator):
    rows = still_generator.between(0, 200_000)
    best = best_auc(still_generator, 0, 200_000)
    assert 0.75 < best < 0.9
    assert metrics.auc(rows.click, rows.probability) == pytest.approx(best, abs=0.005)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(3, 40))
def test_expected_auc_counts_every_pair(seed, size):
    random = np.random.default_rng(seed)
    chance, score = random.random(size) * 0.9 + 0.05, random.integers(0, 6, size).astype(float)
    right = total = 0.0
    for i in range(size):
        for j in range(size):
            if i != j:
                weight = chance[i] * (1 - chance[j])
                total += weight
                right += weight * (float(score[i] > score[j]) + 0.5 * float(score[i] == score[j]))
    assert generator.expected_auc(chance, score) == pytest.approx(right / total)


def test_no_score_beats_the_true_probabilities(still_generator):
    true = still_generator.between(0, 20_000).probability
    best = generator.expected_auc(true, true)
    noise = np.random.default_rng(3).normal(size=len(true))
    assert generator.expected_auc(true, np.log(true / (1 - true)) + 0.3 * noise) < best - 0.002


def test_label_noise_lowers_the_best_auc():
    aucs = [
        best_auc(Generator(LogSpec(cardinalities=FIELDS, label_noise=noise)), 0, 20_000) for noise in (0.0, 0.2, 0.5)
    ]
    assert aucs[0] > aucs[1] + 0.01 > aucs[2] + 0.02


def test_frozen_model_gets_worse_with_lag(drifting):
    curve = generator.auc_vs_lag(drifting, [0, 600, 3600, 2 * 3600, 8 * 3600], at_s=10 * 3600, samples=20_000)
    aucs = [point.auc for point in curve]
    assert aucs[0] == pytest.approx(best_auc(drifting, 3_600_000, 3_620_000))
    assert aucs[0] - aucs[1] < 0.01  # ten minutes hardly matter
    assert aucs[1] > aucs[2] + 0.01 > aucs[3] + 0.02
    assert aucs[4] == pytest.approx(0.5, abs=0.08)


def test_without_drift_a_frozen_model_never_gets_worse(still_generator):
    first, last = generator.auc_vs_lag(still_generator, [0, 1e6], samples=5_000)
    assert first.auc == last.auc


def test_drift_keeps_the_difficulty_constant(drifting):
    early, late = drifting.between(0, 50_000), drifting.between(40_000_000, 40_050_000)
    assert late.time_s[0] == 400_000
    assert early.click.mean() == pytest.approx(late.click.mean(), abs=0.15)
    assert best_auc(drifting, 40_000_000, 40_050_000) == pytest.approx(best_auc(drifting, 0, 50_000), abs=0.05)


def test_histories_match_the_users_taste_and_are_padded_at_the_end(still_generator):
    seen = population.histories(still_generator.world)
    assert seen.shape == (FIELDS[0], SMALL.history)
    assert seen.max() <= FIELDS[1]
    present = seen > 0
    assert (np.diff(present.astype(int), axis=1) <= 0).all()
    assert 0.3 < present.mean() < 0.7
    assert population.categories(still_generator.world)[0] == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"click_rate": 0.0},
        {"cardinalities": (10, 10)},
        {"cardinalities": (10, 10, 1)},
        {"label_noise": 1.5},
        {"taste": 0.2},
        {"events_per_s": 0.0},
        {"seed": "x"},
        {"drift_per_hour": -1.0},
    ],
)
def test_impossible_log_spec_is_refused(wrong):
    with pytest.raises(errors.BadInput, match=next(iter(wrong))):
        LogSpec(**wrong)


def test_generator_and_metrics_need_no_torch():
    code = "import sys; import springtide.zoo.clicklog.generator, springtide.zoo.metrics; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
