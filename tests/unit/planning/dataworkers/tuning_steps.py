"""Helpers for tuning tests: one interval, and the next one after a target was applied."""

from typing import Any

from springtide.domain.data.data_workers import FeedRules, FeedSeen, FeedTarget, StageSeen
from springtide.planning.dataworkers import tuner
from springtide.planning.dataworkers.tuning_rules import Tuning


def observed(**fields: Any) -> FeedSeen:
    usual: dict[str, Any] = dict(
        at=0.0,
        trainers=1,
        data_workers=0,
        data_worker_cpu=0.0,
        data_worker_cpu_used=0.0,
        trainer_cpu=0.0,
        trainer_cpu_used=0.0,
        steps_per_s=10.0,
        made_per_s=0.0,
        capable_per_s=100.0,
        fill=0.0,
        wait_share=0.0,
        own_share=0.9,
        free_cpu=16.0,
        share_cpu=8.0,
    )
    given = {**usual, **fields}
    stage = StageSeen(
        consumers=given["trainers"],
        workers=given.pop("data_workers"),
        cpu=given.pop("data_worker_cpu"),
        cpu_used=given.pop("data_worker_cpu_used"),
        made_per_s=given.pop("made_per_s"),
        capable_per_s=given["capable_per_s"],
        fill=given.pop("fill"),
        wait_share=given.pop("wait_share"),
    )
    return FeedSeen(**{"stages": (stage,), **given})


def observed_after(target: FeedTarget, **fields: Any) -> FeedSeen:
    there: dict[str, Any] = dict(data_workers=target.data_workers, wait_share=0.5, made_per_s=10.0)
    there["data_worker_cpu"] = target.data_worker_cpu
    if target.trainer_cpu is not None:
        there["trainer_cpu"] = target.trainer_cpu
    return observed(**{**there, **fields})


def stage(**fields: Any) -> StageSeen:
    usual: dict[str, Any] = dict(
        consumers=1, workers=1, cpu=1.0, cpu_used=1.0, made_per_s=10.0, capable_per_s=100.0, fill=0.0, wait_share=0.5
    )
    return StageSeen(**{**usual, **fields})


KEEPS_UP: dict[str, Any] = dict(wait_share=0.0, fill=1.0, made_per_s=100.0, steps_per_s=100.0)


def after_baseline(rules: FeedRules | None = None, **fields: Any) -> tuple[Tuning, FeedTarget]:
    """After the baseline."""
    return tuner.decide(tuner.begin(rules or FeedRules()), observed(**fields))
