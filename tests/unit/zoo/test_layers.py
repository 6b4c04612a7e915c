"""Pairwise dots and their gradient against a plain batched product."""

import torch

from springtide.zoo import layers


def plain(vectors: torch.Tensor) -> torch.Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2))


def vectors() -> torch.Tensor:
    return torch.randn(5, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()


def test_pairwise_dots_and_their_gradients_match_a_plain_product() -> None:
    ours, theirs = vectors(), vectors()
    uneven = torch.randn(5, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    layers.dots_of_all_pairs(ours).backward(uneven)
    plain(theirs).backward(uneven)
    assert torch.allclose(layers.dots_of_all_pairs(ours), plain(theirs))
    assert ours.grad is not None and theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad)


def test_pairwise_dots_can_be_differentiated_twice() -> None:
    assert torch.autograd.gradcheck(layers.dots_of_all_pairs, (vectors(),))
    assert torch.autograd.gradgradcheck(layers.dots_of_all_pairs, (vectors(),))


def test_autocast_gradients_have_the_dtype_of_the_vectors() -> None:
    ours, theirs = vectors().float().detach().requires_grad_(), vectors().float().detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = layers.dots_of_all_pairs(ours), plain(theirs)
    assert found.dtype == torch.bfloat16
    found.sum().backward()
    expected.sum().backward()
    assert ours.grad is not None and theirs.grad is not None and ours.grad.dtype == torch.float32
    assert torch.allclose(ours.grad, theirs.grad, rtol=0.02, atol=0.1)
