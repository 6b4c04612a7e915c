"""What it takes to bring a batch from one process to another: 29 tensors, 3.5 MB, one outstanding.

In: dataworker/transport/channel.py over shared memory and TCP. Held to a raw copy into and out of shared memory and to
a raw sendmsg loop, between the same two processes, by programs that know every shape beforehand; beside them one
message a tensor, pickle, torch.save and, where installed, Arrow. Also a model of 141 small tensors, trained: one
message a batch against one a tensor, with a core for the trainer and with half of one. Out: `shm_vs_raw_copy`,
`tcp_vs_raw`. The two sides: dataworkers/transfer_sender.py, dataworkers/transfer_receiver.py.
"""

import contextlib
import functools
import importlib.util
import os
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report

SHM, TCP = "fused, shared memory", "fused, TCP"
RAW_SHM, RAW_TCP = "raw shared copy", "raw sendmsg"
SINGLY_SHM, SINGLY_TCP = "one message a tensor, shared memory", "one message a tensor, TCP"
SIZES = {"tensors": 29, "rows": 13_000}
MANY = {"tensors": 141, "rows": 512}

Cost = dict[str, list[float]]


def bench(options: Options) -> report.Result:
    seconds, rounds = (0.05, 2) if options.quick else (0.3, 14)
    slow = ["pickle", "torch.save", *(["arrow"] if importlib.util.find_spec("pyarrow") else [])]
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(peers.Worker("dataworkers/transfer_sender", options={}))
        addresses = sender.ask("round", what="addresses")
        receiver = stack.enter_context(peers.Worker("dataworkers/transfer_receiver", options=addresses))
        cpu: Cost = {}
        ways = [SHM, RAW_SHM, TCP, RAW_TCP, SINGLY_SHM, SINGLY_TCP, *slow]
        measured = harness.alternate(
            [contestant(sender, receiver, way, SIZES, seconds, cpu, train=False) for way in ways], rounds=rounds
        )
        trained = {}
        for name, cores in placings().items():
            sender.ask("round", what="pin", cores=cores["sender"])
            receiver.ask("round", cores=cores["receiver"])
            fed = [
                contestant(sender, receiver, way, MANY, 2 * seconds, cpu, train=True, label=f"{way}, {name}")
                for way in (TCP, SINGLY_TCP)
            ]
            trained[name] = harness.alternate(fed, rounds=max(2, rounds // 2))
    return judge(measured, trained, cpu)


def placings() -> dict[str, dict[str, list[int]]]:
    """Cores of both processes: one each, and one for both together."""
    cores = sorted(os.sched_getaffinity(0))
    first, second = [cores[0]], [cores[-1]]
    return {"a core each": {"sender": second, "receiver": first}, "half a core": {"sender": first, "receiver": first}}


def contestant(
    sender: peers.Worker,
    receiver: peers.Worker,
    way: str,
    sizes: dict[str, int],
    seconds: float,
    cpu: Cost,
    *,
    train: bool,
    label: str = "",
) -> harness.Contestant:
    """Batches a second by one way; CPU seconds of both processes a batch go to `cpu`."""
    spent = cpu.setdefault(label or way, [])
    measure = functools.partial(one, sender, receiver, spent, way=way, seconds=seconds, train=train, **sizes)
    return harness.Contestant(name=label or way, measure=measure)


def one(sender: peers.Worker, receiver: peers.Worker, spent: list[float], **request: Any) -> float:
    before = sender.figure(what="cpu")
    answer = receiver.ask("round", **request)
    spent.append((sender.figure(what="cpu") - before) / answer["batches"] + answer["cpu_s"])
    return float(answer["figure"])


def judge(measured: harness.Rounds, trained: dict[str, harness.Rounds], cpu: Cost) -> report.Result:
    goals = (
        report.goal("shm_vs_raw_copy", measured.ratio(SHM, RAW_SHM), target=0.85),
        report.goal("tcp_vs_raw", measured.ratio(TCP, RAW_TCP), target=0.8),
    )
    spent = harness.Rounds(figures={name: figures for name, figures in cpu.items()})
    rows: list[tuple[str | float | None, ...]] = [
        (way, 1e3 / measured.median(way), 1e3 * spent.median(way), 3.5e-3 * measured.median(way))
        for way in measured.figures
    ]
    fusing = {}
    for name, rounds in trained.items():
        fused, singly = f"{TCP}, {name}", f"{SINGLY_TCP}, {name}"
        fusing[name] = rounds.ratio(fused, singly)
        rows += [
            (f"141 tensors, trained: {way}", 1e3 / rounds.median(way), 1e3 * spent.median(way), None)
            for way in (fused, singly)
        ]
    gains = "; ".join(f"{name}: {ratio}" for name, ratio in fusing.items())
    return report.Result(
        goals=goals,
        rounds=measured.count,
        columns=("way", "ms a batch", "CPU ms, both sides", "GB/s"),
        rows=tuple(rows),
        notes=(
            "29 tensors, 3.5 MB, one batch outstanding; a shared batch is had as views, a raw one as copies",
            f"141 tensors, trained: steps a second of one message a batch over one a tensor, {gains}",
        ),
        details={"fused_vs_singly": {name: ratio.value for name, ratio in fusing.items()}},
    )
