"""Measure the transfer of batches from one process to another: 29 tensors, 3.5 MB, one batch outstanding.

In: dataworker/transport/channel.py over shared memory and TCP. Out: `shm_vs_raw_copy` and `tcp_vs_raw`, against raw
copies by programs that know every shape. For training on 141 small tensors: one message per batch against one
message per tensor.
"""

import contextlib
import functools
import os
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report

SHM, TCP = "fused, shared memory", "fused, TCP"
RAW_SHM, RAW_TCP = "raw shared copy", "raw sendmsg"
SINGLY_TCP = "one message a tensor, TCP"
SIZES = {"tensors": 29, "rows": 13_000}
MANY = {"tensors": 141, "rows": 512}


def bench(options: Options) -> report.Result:
    seconds, rounds = (0.05, 2) if options.quick else (0.3, 14)
    with contextlib.ExitStack() as stack:
        sender = stack.enter_context(peers.Worker("dataworkers/transfer_process", options={"role": "sender"}))
        addresses = sender.ask("round", what="addresses")
        receiver = stack.enter_context(
            peers.Worker("dataworkers/transfer_process", options={"role": "receiver", **addresses})
        )
        ways = [SHM, RAW_SHM, TCP, RAW_TCP]
        fetch = functools.partial(one, sender, receiver)
        sides = {way: functools.partial(fetch, way=way, seconds=seconds, train=False, **SIZES) for way in ways}
        measured = harness.alternate(sides, rounds=rounds)
        trained = {}
        for name, cores in placings().items():
            sender.ask("round", what="pin", cores=cores["sender"])
            receiver.ask("round", cores=cores["receiver"])
            fed = {
                f"{way}, {name}": functools.partial(fetch, way=way, seconds=2 * seconds, train=True, **MANY)
                for way in (TCP, SINGLY_TCP)
            }
            trained[name] = harness.alternate(fed, rounds=max(2, rounds // 2))
    return judge(measured, trained)


def placings() -> dict[str, dict[str, list[int]]]:
    """Return the cores of the sender and of the receiver for two cases: one core for each process, and one core for
    both.
    """
    cores = sorted(os.sched_getaffinity(0))
    first, second = [cores[0]], [cores[-1]]
    return {"a core each": {"sender": second, "receiver": first}, "half a core": {"sender": first, "receiver": first}}


def one(sender: peers.Worker, receiver: peers.Worker, **request: Any) -> dict[str, float]:
    """Measure one way of sending; return batches per second, and CPU seconds of both processes per batch."""
    before = sender.figure(what="cpu")
    answer = receiver.ask("round", **request)
    used = (sender.figure(what="cpu") - before) / answer["batches"] + answer["cpu_s"]
    return {"figure": answer["figure"], "cpu_s": used}


def judge(measured: harness.Rounds, trained: dict[str, harness.Rounds]) -> report.Result:
    goals = (
        report.goal("shm_vs_raw_copy", measured.ratio(SHM, RAW_SHM), target=0.85),
        report.goal("tcp_vs_raw", measured.ratio(TCP, RAW_TCP), target=0.8),
    )
    spent = measured.part("cpu_s")
    rows: list[report.Cells] = [
        (way, 1e3 / measured.median(way), 1e3 * spent.median(way), 3.5e-3 * measured.median(way))
        for way in measured.figures
    ]
    fusing = {}
    for name, rounds in trained.items():
        fused, singly = f"{TCP}, {name}", f"{SINGLY_TCP}, {name}"
        fusing[name] = rounds.ratio(fused, singly)
        rows += [
            (f"141 tensors, trained: {way}", 1e3 / rounds.median(way), 1e3 * rounds.part("cpu_s").median(way), None)
            for way in (fused, singly)
        ]
    gains = "; ".join(f"{name}: {ratio}" for name, ratio in fusing.items())
    return report.Result(
        goals=goals,
        rounds=measured.count,
        columns=("way", "ms a batch", "CPU ms, both sides", "GB/s"),
        rows=tuple(rows),
        notes=(
            "29 tensors, 3.5 MB, one batch outstanding; a shared batch arrives as views, a raw batch as copies",
            f"141 tensors, trained: steps a second of one message a batch over one a tensor, {gains}",
        ),
        details={"fused_vs_singly": {name: ratio.value for name, ratio in fusing.items()}},
    )
