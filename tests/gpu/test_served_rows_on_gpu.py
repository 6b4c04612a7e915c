"""A job whose worker trains the rows of its servers in GPU memory counts every occurrence once under faults."""

import pytest
import torch

from tests.process import test_rows_on_device

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("cache", [None, "10%"])
def test_rows_of_servers_in_gpu_memory_survive_losses_and_changes_of_the_group(tmp_path, cache):
    _, wrong = test_rows_on_device.count_under_faults(tmp_path, test_rows_on_device.ON_GPU, cache=cache)
    assert not wrong, wrong
