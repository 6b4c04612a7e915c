"""A DLRM of TorchRec, trained by TorchRec's `TrainPipelineBase`.

The pipeline asks for a batch before it has trained the previous one. A job counts a batch as trained when the loop asks
for the next one. The pipeline therefore gets placeholders, and a hook puts the job's batch in before each forward.
"""

from springtide_lab.ports.program import Change, Program

TEXT = """\
import sys
import warnings

warnings.simplefilter("ignore")
import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch.utils.data import DataLoader, TensorDataset
from torchrec.datasets.utils import Batch
from torchrec.distributed.train_pipeline import TrainPipelineBase
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

clicks, seed, result = np.load(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(seed)
torch.set_num_threads(1)
names = [f"id{i}" for i in range(len(clicks["sizes"]))]
data = TensorDataset(*(torch.from_numpy(clicks[part]) for part in ("ids", "numbers", "y")))
train, test = (torch.utils.data.Subset(data, part) for part in np.split(np.arange(len(data)), [clicks["cut"]]))


def collate(samples):
    ids, numbers, y = (torch.stack(part) for part in zip(*samples))
    lengths = torch.ones(ids.numel(), dtype=torch.int32)
    return Batch(numbers.float(), KeyedJaggedTensor(names, ids.T.reshape(-1), lengths=lengths), y.int())


tables = [
    EmbeddingBagConfig(num_embeddings=int(size), embedding_dim=8, name=f"table_{name}", feature_names=[name])
    for name, size in zip(names, clicks["sizes"])
]
dlrm = DLRM(EmbeddingBagCollection(tables=tables), clicks["numbers"].shape[1], [16, 8], [16, 1])
model = DLRMTrain(dlrm)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
batches = DataLoader(train, batch_size=256, shuffle=True, collate_fn=collate)

for epoch in range(2):
    pipeline = TrainPipelineBase(model, optimizer, torch.device("cpu"))
    iterator = iter(batches)
    while True:
        try:
            pipeline.progress(iterator)
        except StopIteration:
            break

model.eval()
with torch.no_grad():
    logits = [model(batch)[1][1] for batch in DataLoader(test, batch_size=1024, collate_fn=collate)]
with open(result, "w") as file:
    print(roc_auc_score(clicks["y"][clicks["cut"] :], torch.cat(logits)), file=file)
"""

PROGRAM = Program(
    name="TorchRec",
    package="torchrec==1.9.2",
    needs=("scikit-learn", "joblib", "threadpoolctl", "narwhals"),
    source="torchrec/distributed/train_pipeline/train_pipelines.py",
    sha256="65405dd44a550e44feeb6176a971b18eba26dabb091feabd0fad9cf93c0c0f51",
    text=TEXT,
    epochs=2,
    changes=(
        Change(
            "batches = DataLoader(",
            (
                "import itertools",
                "import springtide as st",
                "batches = DataLoader(train, batch_size=256, shuffle=True, collate_fn=collate)",
                "model, optimizer, batches = st.join().prepare(model, optimizer, batches)",
                "model.register_forward_pre_hook(lambda model, given: (next(iterator),) if model.training else given)",
            ),
        ),
        Change("pipeline.progress(", ("pipeline.progress(itertools.repeat(torch.zeros(())))",)),
    ),
)
