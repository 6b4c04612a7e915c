"""A DataLoader whose workers come and go, without a job or tables: python examples/06_elastic_loader.py

The first loop stops in the middle of an epoch, as if its machine had been lost. The second loop continues after the
last batch of the first, with another number of data workers. No sample is lost, none comes twice.
"""

import zlib

import torch
from torch.utils.data import Dataset

from springtide.data import ElasticLoader


class Clicks(Dataset):
    """Lines of a log, parsed and hashed when they are read: work for data workers."""

    def __len__(self) -> int:
        return 5_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor | int]:
        """One line of the file as features; sample 1234 is broken."""
        if index == 1234:
            raise ValueError("no such user")
        words = [f"user-{index % 977}", f"item-{index % 3001}", f"hour-{index % 24}"]
        hashed = [zlib.crc32(word.encode()) % 100_000 for word in words]
        return {"line": index, "ids": torch.tensor(hashed)}


lines: list[int] = []

with ElasticLoader(Clicks(), batch_size=32, shuffle=True, seed=7, num_workers=1, on_error="skip") as loader:
    for step, batch in enumerate(loader, start=1):
        lines += batch["line"].tolist()
        if step == 20:
            loader.resize(2)  # add data workers while the loader runs
        if step == 60:
            state = loader.state_dict()  # plain values: save them with the model
            break
    skipped = [sample.index for sample in loader.skipped]

with ElasticLoader(Clicks(), batch_size=64, shuffle=True, num_workers=0, on_error="skip") as loader:
    loader.load_state_dict(state)
    for batch in loader:
        lines += batch["line"].tolist()
    skipped += [sample.index for sample in loader.skipped]

print(f"{len(lines)} samples, {len(set(lines))} of them different; left out: {skipped}")

# Expected output:
# 4999 samples, 4999 of them different; left out: [1234]
