"""Streaming metrics against plain ones."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide import errors
from springtide.zoo.metrics import StreamingAUC, StreamingLogLoss, auc


def plain_auc(labels, scores):
    ones = [s for y, s in zip(labels, scores, strict=True) if y]
    zeros = [s for y, s in zip(labels, scores, strict=True) if not y]
    if not ones or not zeros:
        return math.nan
    right = sum((a > b) + 0.5 * (a == b) for a in ones for b in zeros)
    return right / (len(ones) * len(zeros))


def same(a, b):
    return a == pytest.approx(b, abs=1e-12, nan_ok=True)


batches = st.lists(st.tuples(st.booleans(), st.sampled_from([-20.0, -3.0, -1.0, 0.0, 0.5, 2.0, 30.0])), max_size=60)
logits = st.lists(st.tuples(st.booleans(), st.floats(-12, 12)), max_size=60)


def columns(pairs):
    return np.array([y for y, _ in pairs], dtype=float), np.array([s for _, s in pairs], dtype=float)


@given(logits)
def test_exact_auc_counts_every_pair(pairs):
    labels, scores = columns(pairs)
    assert same(auc(labels, scores), plain_auc(labels, scores))


@given(batches)
def test_ties_count_half(pairs):
    labels, scores = columns(pairs)
    streamed = StreamingAUC()
    streamed.update(labels, scores)
    assert same(auc(labels, scores), plain_auc(labels, scores))
    assert same(streamed.value(), plain_auc(labels, scores))  # equal scores share a cell, others here do not


@given(logits)
def test_streamed_auc_is_within_its_stated_bound(pairs):
    labels, scores = columns(pairs)
    streamed = StreamingAUC()
    streamed.update(labels, scores)
    exact = plain_auc(labels, scores)
    assert math.isnan(exact) == math.isnan(streamed.value())
    if not math.isnan(exact):
        assert abs(streamed.value() - exact) <= streamed.error_bound() + 1e-12


@settings(max_examples=50)
@given(st.lists(logits, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_merging_in_any_order_equals_one_stream(parts, random):
    whole_auc, whole_loss = StreamingAUC(), StreamingLogLoss()
    pieces = []
    for part in parts:
        labels, scores = columns(part)
        pieces.append((StreamingAUC(), StreamingLogLoss()))
        for metric in (whole_auc, whole_loss, *pieces[-1]):
            metric.update(labels, scores)
    random.shuffle(pieces)
    merged_auc, merged_loss = StreamingAUC(), StreamingLogLoss()
    for one_auc, one_loss in pieces:
        merged_auc.merge(StreamingAUC.from_state(one_auc.state()))
        merged_loss.merge(one_loss)
    assert same(merged_auc.value(), whole_auc.value())
    assert merged_auc.samples == merged_loss.samples == sum(map(len, parts))
    assert merged_loss.value() == pytest.approx(whole_loss.value(), nan_ok=True)
    assert merged_loss.normalised_entropy() == pytest.approx(whole_loss.normalised_entropy(), nan_ok=True)


def test_auc_bound_is_small_for_scores_of_a_real_model():
    random = np.random.default_rng(0)
    scores = random.normal(-1, 1.5, 200_000)
    labels = random.random(200_000) < 1 / (1 + np.exp(-scores))
    streamed = StreamingAUC()
    for part in np.array_split(np.arange(200_000), 17):
        streamed.update(labels[part], scores[part])
    assert streamed.error_bound() < 1e-4
    assert streamed.value() == pytest.approx(auc(labels, scores), abs=1e-5)


def test_log_loss_and_normalised_entropy_match_plain_formulas():
    random = np.random.default_rng(1)
    chance = random.random(1000) * 0.98 + 0.01
    labels = (random.random(1000) < chance).astype(float)
    plain = -np.mean(labels * np.log(chance) + (1 - labels) * np.log(1 - chance))
    rate = labels.mean()
    entropy = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    from_chance, from_logits = StreamingLogLoss(from_logits=False), StreamingLogLoss()
    from_chance.update(labels, chance)
    from_logits.update(labels, np.log(chance / (1 - chance)))
    for metric in (from_chance, from_logits):
        assert metric.value() == pytest.approx(plain)
        assert metric.normalised_entropy() == pytest.approx(plain / entropy)


def test_confident_mistake_has_a_large_finite_loss():
    metric = StreamingLogLoss(from_logits=False)
    metric.update([1.0], [0.0])
    assert 10 < metric.value() < 20


def test_empty_metrics_are_nan():
    assert math.isnan(StreamingAUC().value())
    assert math.isnan(StreamingLogLoss().value())
    assert math.isnan(StreamingLogLoss().normalised_entropy())


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([1.0], [1.0, 2.0], "1 labels and 2 scores"),
        ([1.0, 0.0], [math.nan, 2.0], "1 of 2 scores are NaN"),
        ([0.5], [1.0], "0 or 1"),
        ([1.0], [1.5], "expected probabilities"),
    ],
)
def test_invalid_metric_input_is_refused(labels, scores, message):
    with pytest.raises(errors.BadInput, match=message):
        StreamingAUC(from_logits=False).update(labels, scores)


def test_state_of_another_shape_is_refused():
    with pytest.raises(errors.BadInput, match="65536"):
        StreamingAUC.from_state(np.zeros((2, 5), dtype=np.int64))
