"""A parameter server that saves itself as a job's servers do, without a master.

Options: folder, megabytes (of rows that the loop does not touch: a save copies them, training does not).

Rounds: {"what": "address"}; {"what": "save", "after_s", "hurry", "full", "folder"} begins one in the background;
{"what": "saving"} -> 1 while it runs; {"what": "saved"} waits for it -> when it began and ended on the machine's clock,
bytes, CPU seconds; {"what": "cpu"}.
"""

import pathlib
import resource
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

import line
import numpy as np

Round = Callable[[dict[str, Any]], dict[str, Any]]
BALLAST, DIM = 16_000, 64
CHUNK = 1 << 18


def fill(store: Any, megabytes: float) -> None:
    from springtide.domain.model.tables import TableSpec
    from springtide.embedding.lookup.specs import native_spec

    store.declare(native_spec(TableSpec(id=BALLAST, name="ballast", dim=DIM)))
    rows, first = int(megabytes * 2**20 / (4 * DIM)), 0
    values = np.random.default_rng(0).standard_normal(CHUNK * DIM).astype(np.float32)
    while first < rows:
        count = min(CHUNK, rows - first)
        tables = np.full(count, BALLAST, dtype=np.uint16)
        store.assign(tables, np.arange(first, first + count, dtype=np.int64), values[: count * DIM])
        first += count


class Saves:
    """One save after the other, each after the one before; in a thread, like a server's own."""

    def __init__(self, role: Any, folder: pathlib.Path) -> None:
        from springtide.server import checkpoints

        self._role, self._folder, self._make = role, folder, checkpoints.SlotSaver
        self._saver = checkpoints.SlotSaver(role, folder, "server-0.0", run="bench")
        self._number, self._thread, self._done = 0, threading.Thread(), dict[str, Any]()

    def begin(self, request: dict[str, Any]) -> None:
        self._thread = threading.Thread(target=self._save, args=(request,))
        self._thread.start()

    def runs(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> dict[str, Any]:
        self._thread.join()
        return self._done

    def _save(self, request: dict[str, Any]) -> None:
        from springtide.rpc.messages import messages

        time.sleep(request.get("after_s", 0.0))
        saver, base = self._saver, self._number
        if request.get("full"):
            folder = pathlib.Path(request.get("folder") or self._folder)
            saver, base = self._make(self._role, folder, "full-0.0", run="bench"), 0
        else:
            self._number += 1
        order = messages.SaveOrder(1, base + 1, base, bool(request.get("hurry")))
        began = time.perf_counter()
        said = saver.save(order)
        ended = time.perf_counter()
        assert said.written is not None, said.error
        self._done = {
            "figure": ended - began,
            "began": began,
            "ended": ended,
            "bytes": said.written.size,
            "cpu_s": said.cpu_s,
            "full": all(not piece.since for piece in said.written.pieces),
        }
        if request.get("full"):
            shutil.rmtree(folder, ignore_errors=True)


def start(options: dict[str, Any]) -> tuple[Round, dict[str, str]]:
    from springtide.server import server
    from springtide_lab.bench.core import served_worker

    role = server.ServerRole(index=0, slots=served_worker.SLOTS, seed=0, workers=1, secret=served_worker.SECRET)
    role.place(served_worker.placement(1))
    fill(role.store, options["megabytes"])
    address = role.start()
    saves = Saves(role, pathlib.Path(options["folder"]))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        match request.get("what"):
            case "save":
                saves.begin(request)
                return {"figure": 0}
            case "saving":
                return {"figure": int(saves.runs())}
            case "saved":
                return saves.wait()
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "figure": role.store.rows(),
            "address": address,
            "cpu_s": used.ru_utime + used.ru_stime,
            "bytes": role.store.resident_bytes(),
        }

    return answer, {}


if __name__ == "__main__":
    line.serve(start)
