"""A worker that is alone trains a small model from a stream, and tells how old records are when they are trained.

Options: url, batch, linger_s. A round {"records": n} answers when so many are trained: p50 and p99 of the seconds from
append (`at` in the record itself) to the end of the step that trained it.
"""

import time
from typing import Any

import line
import numpy as np
import torch


class StreamModel(torch.nn.Module):
    """Ids and dense values to one number."""

    def __init__(self, ids: torch.nn.Module) -> None:
        super().__init__()
        self.ids = ids
        self.last = torch.nn.Linear(8 + 13, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        dense = batch["dense"].nan_to_num(0, 0, 0).clamp(-1, 1)
        loss: torch.Tensor = self.last(torch.cat([self.ids(batch["ids"]), dense], 1)).mean()
        return loss


def start(options: dict[str, Any]) -> line.Round:
    import springtide
    from springtide.data.stream.decode import Fixed
    from springtide_lab.bench.stream.stream_readers import CLICK

    torch.set_num_threads(1)
    job = springtide.join()
    model: Any = StreamModel(springtide.EmbeddingBag(8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = springtide.stream(options["url"], decode=Fixed(CLICK), linger_s=options["linger_s"])
    model, optimizer, prepared = job.prepare(model, optimizer, data, batch_size=options["batch"])
    batches = iter(prepared)

    def one_round(request: dict[str, Any]) -> dict[str, Any]:
        lags: list[np.ndarray[Any, Any]] = []
        left = int(request["records"])
        for batch in batches:
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
            lags.append(time.time() - batch["at"].numpy())
            left -= len(batch["at"])
            if left <= 0:
                break
        p50, p99 = np.quantile(np.concatenate(lags), (0.5, 0.99)).tolist()
        return {"figure": p50, "p50_s": p50, "p99_s": p99, "records": sum(map(len, lags))}

    return one_round
