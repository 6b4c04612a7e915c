import numpy as np
import torch

from springtide.domain.data.data_workers import FeedState, FeedTarget
from springtide.planning.dataworkers.observation import Cores, StageCores, TrainerReport
from springtide_lab.bench.dataworkers import dataworkers_walk
from springtide_lab.bench.dataworkers.text_clicks import LogLines


class Paper:
    """Simulates the job of Fig. 13: 1 batch a second per CPU, up to 23."""

    def __init__(self) -> None:
        self.now, self.trainer = (0, 0.0), 8.0
        self.turned: list[tuple[int, float, float]] = []

    def mark(self) -> None:
        pass

    def words(self) -> list[TrainerReport]:
        workers, cpu = self.now
        could = min(23.0, 23.0 * self.trainer / 2.9)
        steps = min(could, workers * cpu) if workers else 4.0
        waited = 1.0 - steps / could if workers else 0.0
        took = FeedState(
            made=int(1e6 * steps) if workers else 0,
            taken=int(1e6 * steps),
            workers=workers,
            looped_s=1e6,
            waited_s=1e6 * waited,
            read_s=0.0 if workers else 8e5,
        )
        return [TrainerReport(1e9, FeedState()), TrainerReport(1e9 + 1e6, took)]

    def cores(self) -> Cores:
        workers, cpu = self.now
        free = 40.0 - self.trainer - workers * cpu
        return Cores((StageCores(workers, cpu),), self.trainer, min(self.trainer, 2.9), free, 8.0)

    def carry_out(self, target: FeedTarget) -> bool:
        before = (self.now, self.trainer)
        self.now = (target.data_workers, target.data_worker_cpu or 0.0)
        self.trainer = target.trainer_cpu or self.trainer
        self.turned.append((*self.now, self.trainer))
        return before != (self.now, self.trainer)


def test_tuning_walk_matches_the_paper() -> None:
    crew = Paper()
    taken = dataworkers_walk.walk(crew, 1e-3, most=40)
    assert [cpu for workers, cpu, _ in crew.turned if workers == 1] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert max(workers for workers, _, _ in crew.turned) >= 3
    assert crew.turned[-1][1:] == (8.0, 3.0)
    assert any("2 cores" in one.why and "back to 3" in one.why for one in taken)


def test_click_batch_is_the_same_from_any_maker() -> None:
    indices = np.arange(5000, 5000 + LogLines.BATCH)
    first, again = LogLines()(indices), LogLines()(indices)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["places"].shape == (LogLines.BATCH, LogLines.WORDS + len(LogLines.CROSSES))
    assert torch.equal(first["ids"][first["places"]].flatten().unique(), first["ids"])
