import subprocess
import sys

SCRIPT = """
import sys, torch, springtide as st
job = st.join()
model = torch.nn.Sequential(torch.nn.EmbeddingBag(9, 2), torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ids = torch.utils.data.TensorDataset(torch.arange(8).reshape(8, 1))
model, optimizer, batches = job.prepare(model, optimizer, ids, batch_size=4)
for (x,) in batches:
    optimizer.zero_grad(set_to_none=False)
    model(x).sum().backward()
assert "torch._dynamo" not in sys.modules, "something loaded the compiler"

plain = torch.optim.Optimizer.zero_grad.__wrapped__
assert getattr(plain, "__dynamo_disable") is plain
import torch._dynamo
assert not hasattr(plain, "__dynamo_disable"), "torch does not get to mark it"
optimizer.zero_grad(set_to_none=False)
assert getattr(plain, "__dynamo_disable") is not plain
"""


def test_a_worker_loads_the_compiler_only_when_its_script_does_and_then_torch_marks_its_methods_itself():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
