"""Measure how fast one server hands all its slots to another server without training traffic, compared to plain TCP
over loopback.

In: two server processes with tables of some hundred MB; the slots move there and back. Out: `bandwidth_vs_loopback`,
the bytes of slot data per second, divided by the bytes per second of one TCP stream between the same processes in the
same round.
"""

import itertools

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, peers, report

ROWS, DIM = 1_000_000, 64
ROW_BYTES = 2 * 4 * DIM  # with Adagrad's state
TARGET = 0.5
SLOTS, STREAM = "slots handed over, both servers serving", "one plain TCP stream of as many bytes"


def bench(options: Options) -> report.Result:
    rows, rounds = (20_000, 2) if options.quick else (ROWS, 8)
    with (
        peers.Worker("core/server_process", options={"index": 0}) as first,
        peers.Worker("core/server_process", options={"index": 1}) as second,
    ):
        servers = (first, second)
        addresses = [server.ask("round")["address"] for server in servers]
        first.ask("round", what="fill", rows=rows, dim=DIM)  # the first server starts with all slots
        directions = itertools.cycle(((0, 1), (1, 0)))

        def hand_over() -> dict[str, float]:
            source, target = next(directions)
            return servers[source].ask("round", what="give", server=target, address=addresses[target])

        def stream() -> float:
            port = second.ask("round", what="sink")["figure"]
            return first.figure(what="send", port=port, bytes=rows * ROW_BYTES)

        measured = harness.alternate({SLOTS: hand_over, STREAM: stream}, rounds=rounds)
    return judge(measured, rows)


def judge(measured: harness.Rounds, rows: int) -> report.Result:
    freeze_ms = 1e3 * max(measured.parts["longest_freeze_s"][SLOTS])
    return report.Result(
        goals=(report.goal("bandwidth_vs_loopback", measured.ratio(SLOTS, STREAM), target=TARGET),),
        rounds=measured.count,
        columns=("what", "MB/s, median"),
        rows=tuple((name, measured.median(name) / 1e6) for name in measured.figures),
        notes=(
            f"{jobs.SLOTS} slots: {rows} rows of dim {DIM} with the state of Adagrad",
            f"no slot was without an owner for longer than {freeze_ms:.2f} ms",
        ),
        details={"rates": measured.figures},
    )
