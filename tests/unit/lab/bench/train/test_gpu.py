"""`springtide bench gpu` without a GPU says what it needs."""

import pytest
import torch

from springtide import errors
from springtide_lab.bench import Options
from springtide_lab.bench.train import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_gpu_benchmark_without_a_gpu_says_what_it_needs():
    with pytest.raises(errors.BadInput, match="needs a CUDA GPU"):
        gpu.bench(Options(quick=True))
