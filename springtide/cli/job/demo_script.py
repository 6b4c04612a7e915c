"""The script of `springtide demo`: WideDeep on a generated click log. Plain PyTorch; copy and change the file as you
like.

    python demo_script.py                                          alone, in one process
    springtide run demo_script.py --servers 2 --workers 2          the same on parameter servers

Only the three lines marked with <- make it a Springtide script. The lines marked with # count samples, to show that
none is lost or repeated when processes die. Leave these lines out of your own script.
"""

import argparse

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import springtide as st
from springtide.zoo import ClickLog, demo
from springtide.zoo.metrics import StreamingAUC


def main() -> None:
    """Train one epoch. Rank 0 then measures the AUC on events that are newer than the training events."""
    options = parse()
    job = st.join()  # <- connect to the job; without a job, train alone
    train, test = demo.log(options.samples, folder=options.data)

    torch.manual_seed(0)
    widedeep = demo.model()  # WideDeep: 26 fields, each with a table of 8 floats a row and one of weights
    model = demo.CountedModel(widedeep)  #
    optimizers = [
        torch.optim.Adagrad(widedeep.parameters(), lr=options.lr),
        torch.optim.SGD(model.seen.parameters(), lr=1.0),  #
    ]
    model, optimizers, batches = job.prepare(model, optimizers, train, batch_size=options.batch_size)  # <- served

    progress = StreamingAUC()
    for step, (x, y) in enumerate(batches):
        for optimizer in optimizers:
            optimizer.zero_grad()
        logits = model(x)
        loss = binary_cross_entropy_with_logits(logits, y)
        (loss + model.count(x)).backward()  # for the count: each row that is read changes by minus one
        for optimizer in optimizers:
            optimizer.step()
        progress.update(y, logits.detach())
        if step % 10 == 0:
            job.report(loss=loss.item(), auc=progress.value())  # <- values for the live view
    if job.rank == 0 and not job.leaving:
        auc, best = measure(model, test), test.best_auc()
        job.report(test_auc=auc, best_auc=best)
        if job.sync == "async":  # not in a bsp group: its gradient is a mean over the group, so it cannot count samples
            count = demo.compare(model.state_dict()["seen.weight"], train)  #
            job.report(counted=count.counted, lost=count.lost, repeated=count.repeated)  #
        print(f"AUC on {len(test):,} later events: {auc:.4f}; the best possible is {best:.4f}")


def measure(model: torch.nn.Module, test: ClickLog) -> float:
    model.eval()
    auc = StreamingAUC()
    with torch.no_grad():
        for part in np.array_split(np.arange(len(test)), max(1, len(test) // 4096)):
            x, y = test.batch(part)
            auc.update(y, model(x))
    return auc.value()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="WideDeep on a generated click log")
    parser.add_argument("--samples", type=int, default=demo.SAMPLES)
    parser.add_argument("--batch-size", type=int, default=demo.BATCH)
    parser.add_argument("--lr", type=float, default=demo.LEARNING_RATE)
    parser.add_argument("--data", help="folder to keep the generated log in, so that workers share it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
