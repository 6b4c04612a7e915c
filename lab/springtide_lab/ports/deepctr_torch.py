"""A DeepFM of DeepCTR-Torch, trained by the `fit` of its models."""

from springtide_lab.ports.program import Change, Program

TEXT = """\
import sys

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM

clicks, seed, result = np.load(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(seed)
torch.set_num_threads(1)
sizes = clicks["sizes"]
columns = [SparseFeat(f"id{i}", int(size), embedding_dim=8) for i, size in enumerate(sizes)]
columns += [DenseFeat(f"number{i}", 1) for i in range(clicks["numbers"].shape[1])]
x = {f"id{i}": clicks["ids"][:, i] for i in range(len(sizes))}
x |= {f"number{i}": numbers for i, numbers in enumerate(clicks["numbers"].T)}
train = {name: values[: clicks["cut"]] for name, values in x.items()}
test = {name: values[clicks["cut"] :] for name, values in x.items()}
y = clicks["y"].astype(np.float64)
y_train, y_test = y[: clicks["cut"]], y[clicks["cut"] :]

model = DeepFM(columns, columns, dnn_hidden_units=(32, 16), seed=seed)
model.compile(torch.optim.Adagrad(model.parameters(), lr=0.05), "binary_crossentropy", metrics=["auc"])
model.fit(train, y_train, batch_size=256, epochs=2, verbose=2)
with open(result, "w") as file:
    print(model.evaluate(test, y_test)["auc"], file=file)
"""

PROGRAM = Program(
    name="DeepCTR-Torch",
    package="deepctr-torch==0.3.0",
    needs=(
        "scikit-learn",
        "joblib",
        "threadpoolctl",
        "narwhals",
        "requests",
        "urllib3",
        "idna",
        "certifi",
        "charset-normalizer",
        "tqdm",
    ),
    source="deepctr_torch/models/basemodel.py",
    sha256="a6d81f75992de09063c6291ebc4ba392da2225aec6dc7bc0d3627e98460f25b4",
    text=TEXT,
    epochs=2,
    changes=(
        Change(
            "from deepctr_torch.models import",
            (
                "from deepctr_torch.models import DeepFM, basemodel",
                "from torch.utils.data import TensorDataset",
                "import springtide as st",
            ),
        ),
        Change(
            "model.fit(",
            (
                "table = np.stack([train[name] for name in model.feature_index], axis=1)",
                "data = TensorDataset(torch.from_numpy(table), torch.from_numpy(y_train))",
                "_, model.optim, batches = st.join().prepare(model, model.optim, data, batch_size=256, shuffle=True)",
                "plain = basemodel.DataLoader",
                "basemodel.DataLoader = lambda **options: batches if model.training else plain(**options)",
                "model.fit(train, y_train, batch_size=256, epochs=2, verbose=2)",
            ),
        ),
    ),
)
