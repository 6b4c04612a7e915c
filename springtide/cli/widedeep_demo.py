"""The script of `springtide demo`: WideDeep on a generated click log. Plain PyTorch; copy it and change what you like.

    python widedeep_demo.py                                          alone, in one process
    springtide run widedeep_demo.py --servers 2 --workers 2          the same on parameter servers

The three lines marked with <- are all that makes it a Springtide script.
"""

import argparse

import numpy as np
import torch

import springtide as st
from springtide import zoo
from springtide.zoo.metrics import StreamingAUC
from springtide.zoo.widedeep import WideDeep


def main() -> None:
    """Train one epoch, then let rank 0 measure the AUC on events that come after those trained on."""
    options = parse()
    job = st.join()  # <- who am I, where are the servers; alone when there are none
    log = zoo.ClickLog(options.samples, folder=options.data)
    train, test = log.split(test_share=0.1)

    torch.manual_seed(0)
    model: torch.nn.Module = WideDeep(log.tables)
    optimizer: torch.optim.Optimizer = torch.optim.Adagrad(model.parameters(), lr=options.lr)
    model, optimizer, batches = job.prepare(
        model, optimizer, train, batch_size=options.batch_size
    )  # <- tables are served

    progress = StreamingAUC()
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        logits = model(x)
        loss = zoo.loss(logits, y)
        loss.backward()
        optimizer.step()
        progress.update(y, logits.detach())
        if step % 10 == 0:
            job.report(loss=loss.item(), auc=progress.value())  # <- what the live view shows
    if job.rank == 0:
        auc, best = measure(model, test), test.best_auc()
        job.report(test_auc=auc, best_auc=best)
        print(f"AUC on {len(test):,} later events: {auc:.4f}; the best possible is {best:.4f}")


def measure(model: torch.nn.Module, test: "zoo.ClickLog") -> float:
    """AUC on a data set, read in large batches."""
    model.eval()
    auc = StreamingAUC()
    with torch.no_grad():
        for part in np.array_split(np.arange(len(test)), max(1, len(test) // 4096)):
            x, y = test.batch(part)
            auc.update(y, model(x))
    return auc.value()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="WideDeep on a generated click log")
    parser.add_argument("--samples", type=int, default=400_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--data", help="folder to keep the generated log in, so that workers share it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
