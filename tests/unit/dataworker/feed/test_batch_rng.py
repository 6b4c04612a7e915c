"""Random numbers seeded by batch name, without changing the process's generators."""

import random

import numpy as np
import pytest
import torch

from springtide.dataworker.feed import batch_rng


def draw_from_all():
    return torch.rand(3).tolist(), np.random.rand(2).tolist(), random.random()


def test_same_batch_name_gives_the_same_random_numbers():
    def under(seed, name):
        with batch_rng.seeded(seed, name):
            return draw_from_all()

    assert under(1, (0, 0, 8, 4)) == under(1, (0, 0, 8, 4))
    numbers = {str(under(seed, name)) for seed in (-1, 0, 1) for name in ((0, 1), (1, 0), (1, 0, 0))}
    assert len(numbers) == 9


def test_seeding_a_batch_leaves_the_process_generators_unchanged():
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    undisturbed = draw_from_all(), draw_from_all()
    torch.manual_seed(5), np.random.seed(5), random.seed(5)
    first = draw_from_all()
    with batch_rng.seeded(1, (2,)):
        draw_from_all()
    assert (first, draw_from_all()) == undisturbed


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("inside", [0, 1, 2])
def test_seeding_keeps_numpys_cached_normal_deviate(before, inside):
    """It keeps the second of a pair for the next call."""

    def own(count):
        return [np.random.randn() for _ in range(count)]

    np.random.seed(8)
    undisturbed = own(before + 6)
    np.random.seed(8)
    had = own(before)
    alike = []
    for _ in range(3):
        with batch_rng.seeded(1, (2,)):
            alike.append(own(inside))
        had += own(2)
    assert had == undisturbed
    assert alike[0] == alike[1] == alike[2]


def test_another_numpy_bit_generator_is_restored():
    kept = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        expected = np.random.rand(4).tolist()
        np.random.set_bit_generator(np.random.PCG64(3))
        found = np.random.rand(2).tolist()
        with batch_rng.seeded(1, (2,)):
            torch.rand(1)
        assert found + np.random.rand(2).tolist() == expected
    finally:
        np.random.set_bit_generator(kept)


def test_batch_without_a_name_draws_from_the_process():
    torch.manual_seed(5)
    expected = torch.rand(3).tolist()
    torch.manual_seed(5)
    with batch_rng.seeded(1, None):
        assert torch.rand(3).tolist() == expected


def test_strand_resumes_its_random_sequence():
    with batch_rng.seeded(3, (1,)):
        together = [torch.rand(1).item() for _ in range(4)]
    strand, apart = batch_rng.Strand(3, (1,)), []
    for _ in range(2):
        with strand.on():
            apart += [torch.rand(1).item() for _ in range(2)]
        torch.rand(7)
    assert apart == together
