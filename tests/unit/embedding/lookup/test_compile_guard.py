import subprocess
import sys

import pytest

SCRIPT = """
import gc, sys, torch, springtide as st
assert gc.isenabled() and (gc.get_freeze_count() > 100_000) == {a_worker}, gc.get_freeze_count()
model = torch.nn.Sequential({bag}, torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = st.join()
ids = torch.utils.data.TensorDataset(torch.arange(8).reshape(8, 1))
model, optimizer, batches = job.prepare(model, optimizer, ids, batch_size=4)
for (x,) in batches:
    optimizer.zero_grad(set_to_none=False)
    model(x).sum().backward()
    optimizer.step()
others = torch.nn.Parameter(torch.ones(2))
for kind in ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"):
    before, stepped = others.detach().clone(), getattr(torch.optim, kind)([others])
    others.grad = torch.ones(2)
    stepped.step()
    assert torch.is_grad_enabled() and not torch.equal(others, before), kind
    stepped.load_state_dict(stepped.state_dict())
assert "torch._dynamo" not in sys.modules, "something loaded the compiler"
"""

THEN_COMPILES = """
plain = torch.optim.Optimizer.zero_grad.__wrapped__
assert getattr(plain, "__dynamo_disable") is plain
import torch._dynamo
assert not hasattr(plain, "__dynamo_disable"), "torch does not get to mark it"
assert "graph_break" in torch.optim.Adam.step.__wrapped__.__code__.co_names, "torch's own code is back"
stepped.step()
optimizer.zero_grad(set_to_none=False)
assert getattr(plain, "__dynamo_disable") is not plain
"""


@pytest.mark.parametrize(
    ("started", "bag", "then"),
    [
        (["-m", "springtide.worker.runner"], "torch.nn.EmbeddingBag(9, 2)", ""),
        ([], "st.EmbeddingBag(2)", THEN_COMPILES),
    ],
    ids=["as a worker", "alone"],
)
def test_compiler_is_loaded_only_when_a_script_compiles(tmp_path, started, bag, then):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{bag}", bag).replace("{a_worker}", str(bool(started))) + then)
    ran = subprocess.run([sys.executable, *started, str(script)], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
