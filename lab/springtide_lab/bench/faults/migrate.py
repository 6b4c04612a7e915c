"""How fast slots move at rest: one server hands all its slots to another, against plain TCP over loopback.

In: two server processes with tables of some hundred MB; the data goes there and back. Out: `bandwidth_vs_loopback`,
bytes of slot data a second over those of one TCP stream between the same processes in the same round.
"""

import statistics
from typing import Any

from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, peers, report

SLOTS = 1024
ROWS, DIM = 1_000_000, 64  # 512 bytes a row with the state of Adagrad
TARGET = 0.5


def bench(options: Options) -> report.Result:
    rows, rounds = (20_000, 2) if options.quick else (ROWS, 8)
    given = [{"index": index, "slots": SLOTS} for index in (0, 1)]  # server 0 has all slots at first
    with (
        peers.Worker("core/server_process", options=given[0]) as first,
        peers.Worker("core/server_process", options=given[1]) as second,
    ):
        servers = (first, second)
        addresses = [str(server.ask("round")["address"]) for server in servers]
        first.ask("round", what="fill", rows=rows, dim=DIM)
        moved: list[dict[str, Any]] = []
        plain: list[float] = []
        with harness.bar("handing slots over", total=rounds) as step:
            for turn in range(-1, rounds):
                source, target = servers[turn % 2 ^ 1], servers[turn % 2]  # turn -1 warms up: 0 to 1
                other = 1 if target is second else 0
                given_away = source.ask("round", what="give", server=other, address=addresses[other])
                port = int(target.ask("round", what="sink")["figure"])
                stream = float(source.ask("round", what="send", port=port, bytes=given_away["bytes"])["figure"])
                if turn >= 0:
                    moved.append(given_away)
                    plain.append(stream)
                    step()
    return judge(moved, plain, rows)


def judge(moved: list[dict[str, Any]], plain: list[float], rows: int) -> report.Result:
    rates = [float(each["figure"]) for each in moved]
    ratio = harness.spread([ours / theirs for ours, theirs in zip(rates, plain, strict=True)])
    freeze_ms = max(float(each["longest_freeze_s"]) for each in moved) * 1e3
    size = float(moved[0]["bytes"])
    return report.Result(
        goals=(report.goal("bandwidth_vs_loopback", ratio, target=TARGET),),
        rounds=len(moved),
        columns=("what", "MB/s, median"),
        rows=(
            ("slots handed over, both servers serving", statistics.median(rates) / 1e6),
            ("one plain TCP stream of as many bytes", statistics.median(plain) / 1e6),
        ),
        notes=(
            f"{size / 1e6:.0f} MB in {SLOTS} slots: {rows} rows of dim {DIM} with the state of Adagrad",
            f"no slot was without an owner for longer than {freeze_ms:.2f} ms",
        ),
        details={"rates": rates, "plain": plain, "bytes": size, "longest_freeze_ms": freeze_ms},
    )
