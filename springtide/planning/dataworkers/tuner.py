"""Pure. Tunes one job's data workers (whether to use them, their size, their number) and the cores of its trainers.
Makes one decision per interval.

baseline -> tuning: size, then number, of the stage that is the limit -> trainer: fewer cores -> steady
    |           |                                                                                 |
    +-----------+--> off: too little gain; again only when the program has changed much  <--------+
"""

from dataclasses import replace

from springtide.domain.data.data_workers import FeedRules, FeedSeen, FeedTarget, StageSeen
from springtide.planning.dataworkers import tuning_rules
from springtide.planning.dataworkers.tuning_rules import (
    FRAGMENT,
    LATE,
    MARGIN,
    PATIENCE,
    STRANGE_FOR,
    TUNE_FOR,
    StageNotes,
    TrainerNotes,
    Tuning,
    TuningPhase,
)

_HAIR = 1e-6
Decided = tuple[Tuning, FeedTarget]


def begin(rules: FeedRules, *, unit: float = 1.0) -> Tuning:
    """Return the initial state. `unit` is the number of cores in one size step."""
    return Tuning(rules=rules, unit=unit)


def decide(tuning: Tuning, seen: FeedSeen) -> Decided:
    if tuning.rules.workers is not None:
        return tuning, _as_told(tuning.rules)
    if seen.trainers == 0 or seen.steps_per_s <= 0:
        return tuning, _target(tuning, "nothing is being trained")
    if tuning.phase is TuningPhase.BASELINE:
        return _after_baseline(tuning, seen)
    if tuning.phase is TuningPhase.OFF:
        return _while_off(tuning, seen)
    if len(tuning.stages) != len(seen.stages):
        return _for_other_stages(tuning, seen)
    if tuning.trainers != seen.trainers:
        return _for_other_trainers(tuning, seen)
    if (fitted := _fit_in(tuning, seen)) is not None:
        return fitted
    if not _is_there(tuning, seen):
        return _wait(tuning, seen)
    return _tune(replace(tuning, late_for=0), seen)


def _as_told(rules: FeedRules) -> FeedTarget:
    count = rules.workers or 0
    why = "no data workers were asked for" if count == 0 else f"{count} data workers were asked for"
    return FeedTarget(data_workers=count, data_worker_cpu=rules.cpu, trainer_cpu=None, why=why)


def _target(tuning: Tuning, why: str) -> FeedTarget:
    stages = tuple(notes.target for notes in tuning.stages)
    last = tuning.stages[-1] if stages else None
    return FeedTarget(
        data_workers=last.workers if last else 0,
        data_worker_cpu=last.cpu if last else None,
        trainer_cpu=tuning.trainer.cpu,
        why=why,
        stages=stages if len(stages) > 1 else (),
    )


def _after_baseline(tuning: Tuning, seen: FeedSeen) -> Decided:
    """If data workers may pay off, start one data worker per trainer, with one unit of cores each."""
    if seen.last.workers > 0:
        return tuning, _target(tuning, f"a baseline without data workers: {seen.last.workers} still have to leave")
    found = tuning_rules.unfed(seen)
    tuning = replace(tuning, baseline=found, settled_on=found, trainers=seen.trainers, strange_for=0)
    spent = f"{found.own_share:.0%} of the time goes into work that data workers could do"
    if not tuning_rules.may_pay(found):
        return _off(tuning, f"{spent}: too little for data workers to be worth their cores")
    begun = _first_stages(tuning, seen)
    if any(notes.workers == 0 for notes in begun):
        return tuning, _target(tuning, f"{spent}, but no cores are free ({seen.free_cpu:g}) for them")
    tuning = replace(tuning, phase=TuningPhase.TUNING, stages=begun, tuned_for=0, doubted_for=0)
    last = begun[-1]
    return tuning, _target(
        tuning,
        f"{found.per_s:.3g} steps/s a trainer without data workers; {spent}: begin with {last.workers} of "
        f"{last.cpu:g} cores",
    )


def _first_stages(tuning: Tuning, seen: FeedSeen) -> tuple[StageNotes, ...]:
    """Return one data worker per trainer and stage, with one unit of cores for each data worker, until no cores are
    left. A stage for which no cores are left gets 0 workers.
    """
    rules, free = tuning.rules, seen.free_cpu
    stages = seen.stages
    most = rules.most
    begun = []
    for left, stage in zip(reversed(range(len(stages))), stages, strict=True):
        allowed = tuning_rules.StageLimits(
            free, rules.cpu or seen.share_cpu or free, None if most is None else max(1, most - left)
        )
        if stage.gpu:
            allowed = allowed._replace(most=min(allowed.most or seen.free_gpu, seen.free_gpu))
        cpu = rules.cpu or (stage.cpu if stage.gpu and stage.cpu > 0 else min(tuning.unit, allowed.size))
        if rules.cpu is None and FRAGMENT * tuning.unit <= free < cpu:
            cpu = free
        count = min(seen.trainers, allowed.workers(cpu))
        begun.append(StageNotes(workers=count, cpu=cpu, sized=rules.cpu is not None or stage.gpu))
        free -= count * cpu
        most = None if most is None else most - count
    return tuple(begun)


def _while_off(tuning: Tuning, seen: FeedSeen) -> Decided:
    was = tuning.settled_on
    assert was is not None
    if seen.last.workers > 0 or not tuning_rules.is_another(was, tuning_rules.unfed(seen)):
        return replace(tuning, strange_for=0), _target(
            tuning, "data workers are not worth their cores, and the program has not changed much"
        )
    tuning = replace(tuning, strange_for=tuning.strange_for + 1)
    return _anew(tuning, seen) if tuning.strange_for >= STRANGE_FOR else (tuning, _target(tuning, _STRANGE))


_STRANGE = "the program has changed much: waiting to see if this lasts"


def _while_strange(tuning: Tuning, seen: FeedSeen) -> Decided:
    """Handle a tuned job that has behaved differently for some intervals. Data workers that still pay off stay."""
    tuning = replace(tuning, strange_for=tuning.strange_for + 1)
    if tuning.strange_for < STRANGE_FOR:
        return tuning, _target(tuning, _STRANGE)
    if tuning.baseline is None or not tuning_rules.pays(tuning.baseline, seen):
        return _anew(tuning, seen)
    stages = tuple(replace(notes, floor=1, ceiling=None, rate=0.0) for notes in tuning.stages)
    tuning = replace(tuning, stages=stages, settled_on=tuning_rules.fed(seen), strange_for=0)
    return tuning, _target(
        tuning,
        "the program has changed much; data workers are still worth their cores, and their number is tuned again",
    )


def _anew(tuning: Tuning, seen: FeedSeen) -> Decided:
    anew = begin(tuning.rules, unit=tuning.unit)
    anew = replace(anew, trainers=seen.trainers, trainer=TrainerNotes(cpu=tuning.trainer.first))
    return anew, _target(anew, "the program has changed much: profiling again without data workers")


def _for_other_trainers(tuning: Tuning, seen: FeedSeen) -> Decided:
    """The number of trainers has changed: keep the number of data workers per trainer, and forget the learned
    limits."""
    stages = []
    for at, notes in enumerate(tuning.stages):
        wanted = -(-notes.workers * seen.trainers // max(tuning.trainers, 1))
        count = max(1, min(wanted, tuning_rules.stage_limits(seen, tuning.rules, at).workers(notes.cpu)))
        fresh = StageNotes(workers=count, cpu=notes.cpu, sized=notes.sized, linear=(), rate=notes.rate)
        stages.append(fresh)
    why = f"{seen.trainers} trainers, {tuning.trainers} before: data workers in proportion"
    cores = replace(tuning.trainer, lent_from=())
    tuning = replace(tuning, stages=tuple(stages), trainers=seen.trainers, trainer=cores, late_for=0)
    return tuning, _target(tuning, why)


def _for_other_stages(tuning: Tuning, seen: FeedSeen) -> Decided:
    """The number of stages has become known, after the program was split: restart tuning."""
    held = sum(stage.workers * stage.cpu for stage in seen.stages)
    begun = _first_stages(tuning, replace(seen, free_cpu=seen.free_cpu + held))
    count = len(begun)
    if any(notes.workers == 0 for notes in begun):
        return _off(tuning, f"no cores ({seen.free_cpu + held:g}) for a data worker of each of {count} stages")
    tuning = replace(tuning, phase=TuningPhase.TUNING, stages=begun, trainers=seen.trainers, tuned_for=0, late_for=0)
    tuning = replace(tuning, trainer=replace(tuning.trainer, lent_from=()))
    return tuning, _target(tuning, f"the program is cut into {count} stages: begin with data workers of each")


def _fit_in(tuning: Tuning, seen: FeedSeen) -> Decided | None:
    """Reduce data workers if other jobs took cores. Return None if the cores suffice or the target already fits."""
    if seen.free_cpu >= 0:
        return None
    stages = list(tuning.stages)
    for at, notes in enumerate(stages):
        there = tuning_rules.stage_limits(seen, tuning.rules, at).workers(notes.cpu)
        if notes.workers > there:
            stages[at] = replace(notes, workers=max(1, there), before=None, cut_from=0, settled=False)
    if tuple(stages) == tuning.stages:
        return None
    tuning = replace(tuning, stages=tuple(stages), late_for=0)
    return tuning, _target(tuning, f"{seen.free_cpu:g} cores are free: fewer data workers")


def _is_there(tuning: Tuning, seen: FeedSeen) -> bool:
    stages = seen.stages
    if seen.last.made_per_s <= 0:
        return False
    wanted = [(notes.workers, notes.cpu) for notes in tuning.stages]
    there = [(stage.workers, stage.cpu) for stage in stages]
    if len(wanted) != len(there):
        return False
    same = all(w == n and abs(c - m) < _HAIR for (w, c), (n, m) in zip(wanted, there, strict=True))
    cpu = tuning.trainer.cpu
    return same and (cpu is None or seen.trainer_cpu <= 0 or abs(cpu - seen.trainer_cpu) < _HAIR)


def _wait(tuning: Tuning, seen: FeedSeen) -> Decided:
    """Wait until the last decision is applied. After `LATE` intervals, continue with the data workers that have
    started."""
    tuning = replace(tuning, late_for=tuning.late_for + 1)
    there = seen.stages
    if tuning.late_for < LATE or len(there) != len(tuning.stages):
        last = tuning.stages[-1]
        made = f", {seen.last.made_per_s:.3g} batches/s arrive from them"
        return tuning, _target(tuning, f"{seen.last.workers} of {last.workers} data workers are there{made}: wait")
    if any(stage.workers == 0 for stage in there):
        return _off(tuning, f"no data worker came in {LATE} intervals")
    if seen.last.made_per_s <= 0:
        return _off(tuning, f"not one batch came from data workers in {LATE} intervals")
    stages = tuple(
        replace(notes, workers=stage.workers, cpu=stage.cpu, ceiling=stage.workers, before=None, cut_from=0)
        for notes, stage in zip(tuning.stages, there, strict=True)
    )
    held = replace(tuning.trainer, cpu=seen.trainer_cpu or None, done=True, growing=False, lent_from=())
    tuning = replace(tuning, stages=stages, trainer=held, late_for=0)
    return tuning, _target(
        tuning, f"some data workers did not start in {LATE} intervals: tuning continues with the others"
    )


def _tune(tuning: Tuning, seen: FeedSeen) -> Decided:
    """When all wanted data workers are running, evaluate the interval and take the next step."""
    tuning = replace(tuning, tuned_for=tuning.tuned_for + 1)
    if tuning.trainer.growing or tuning.trainer.lent_from:
        return _after_trial(tuning, seen)
    if tuning.phase is TuningPhase.STEADY:
        was = tuning.settled_on or tuning_rules.fed(seen)
        if tuning_rules.is_another(was, tuning_rules.fed(seen)):
            return _while_strange(tuning, seen)
        tuning = replace(tuning, settled_on=was, strange_for=0)
    if tuning.phase is TuningPhase.TRAINER:
        return _trainer(tuning, seen)
    stages = seen.stages
    at = tuning_rules.limit(stages)
    before = tuning.stages
    tuning, why = _all_keep_up(tuning, seen, stages) if at is None else _one_is_short(tuning, seen, stages, at)
    if tuple(n.target for n in tuning.stages) != tuple(n.target for n in before):
        return tuning, _target(tuning, why)
    if (
        at is not None
        and tuning.stages[at].ceiling is not None
        and tuning_rules.may_grow(tuning.trainer, seen, tuning.unit)
    ):
        notes, more = tuning_rules.grow(tuning.trainer, seen, tuning.unit)
        tuning = replace(tuning, trainer=notes)
        return tuning, _target(tuning, more)
    if at is not None and (lent := _lend(tuning, seen, at, lasts=before[at].short_for + 1 >= PATIENCE)) is not None:
        return lent
    settled = all(notes.settled for notes in tuning.stages)
    if tuning.phase is TuningPhase.TUNING and (settled or tuning.tuned_for >= TUNE_FOR):
        return _conclude(tuning, seen, why)
    return tuning, _target(tuning, why)


def _one_is_short(tuning: Tuning, seen: FeedSeen, stages: tuple[StageSeen, ...], at: int) -> tuple[Tuning, str]:
    notes, stage, allowed = tuning.stages[at], stages[at], tuning_rules.stage_limits(seen, tuning.rules, at)
    reason = ""
    if not notes.sized:
        notes, reason = tuning_rules.tune_size(notes, stage, allowed, tuning.unit)
        if notes.sized and notes.cpu != stage.cpu:
            # larger sizes scale worse than linearly, so compute the number from the rate of the last linear size
            wanted = tuning_rules.needed(stage.capable_per_s, notes.rate, 0.0)
            count = max(notes.workers, min(wanted, 2 * notes.workers, allowed.workers(notes.cpu)))
            notes = replace(notes, workers=count)
    if notes.sized and notes.cpu == stage.cpu:
        notes, why = tuning_rules.tune_count(notes, stage, allowed)
        reason = f"{reason}; {why}" if reason else why
    if len(stages) > 1:
        reason = f"stage {at + 1} of {len(stages)}: {reason}"
    return replace(tuning, stages=_with(tuning.stages, at, notes)), reason


def _all_keep_up(tuning: Tuning, seen: FeedSeen, stages: tuple[StageSeen, ...]) -> tuple[Tuning, str]:
    """If every stage keeps up, fix the sizes and remove surplus data workers, one stage at a time."""
    why = ""
    for at, (notes, stage) in enumerate(zip(tuning.stages, stages, strict=True)):
        allowed = tuning_rules.stage_limits(seen, tuning.rules, at)
        if not notes.sized:
            notes, _ = tuning_rules.tune_size(notes, stage, allowed, tuning.unit)
        if tuning_rules.keeps_up(stage):
            was = notes
            notes, why = tuning_rules.tune_count(notes, stage, allowed)
            tuning = replace(tuning, stages=_with(tuning.stages, at, notes))
            if notes.target != was.target:
                break
        else:
            tuning = replace(tuning, stages=_with(tuning.stages, at, replace(notes, settled=True)))
    return tuning, why


def _with(stages: tuple[StageNotes, ...], at: int, notes: StageNotes) -> tuple[StageNotes, ...]:
    return (*stages[:at], notes, *stages[at + 1 :])


def _conclude(tuning: Tuning, seen: FeedSeen, why: str) -> Decided:
    """Check whether tuned data workers pay off. If data workers pay off, tune the cores of trainers next."""
    baseline = tuning.baseline
    assert baseline is not None
    if not tuning_rules.pays(baseline, seen):
        tuning = replace(tuning, doubted_for=tuning.doubted_for + 1)
        compared = f"{tuning_rules.speed(seen):.3g} steps/s a trainer, {baseline.per_s:.3g} without data workers"
        if tuning.doubted_for < PATIENCE:
            return tuning, _target(tuning, f"{why}; {compared}: if it lasts...")
        return _off(
            tuning, f"{compared}, after {tuning.tuned_for} intervals of tuning: data workers are not worth their cores"
        )
    tuning = replace(tuning, doubted_for=0, phase=TuningPhase.TRAINER)
    return _trainer(tuning, seen, why)


def _trainer(tuning: Tuning, seen: FeedSeen, why: str = "") -> Decided:
    """If the queues are ideal, try fewer cores for trainers. Otherwise do not change the trainers' cores."""
    notes = tuning.trainer
    if tuning_rules.limit(seen.stages) is not None and not notes.held:
        notes, reason = replace(notes, done=True), "trainers wait, so they keep their cores"
    else:
        notes, reason = tuning_rules.shrink(notes, seen, tuning.unit)
    reason = f"{why}; {reason}" if why else reason
    tuning = replace(tuning, trainer=notes)
    if notes.done:
        tuning = replace(tuning, phase=TuningPhase.STEADY, settled_on=None)
    return tuning, _target(tuning, reason)


def _lend(tuning: Tuning, seen: FeedSeen, at: int, *, lasts: bool) -> Decided | None:
    """If consumers wait for a stage and no cores are free, lend unused cores of trainers to the stage. Return None if
    trainers have no unused cores. `lasts` is True if the wait has lasted long enough to change a tuned job.
    """
    notes, steady = tuning.stages[at], tuning.phase is TuningPhase.STEADY
    if not notes.settled or notes.ceiling is not None or tuning.trainer.lent_in_vain or (steady and not lasts):
        return None
    feeding = sum(stage.workers * stage.cpu for stage in seen.stages)
    lent = tuning_rules.lendable(seen, feeding, tuning.unit)
    if (
        lent <= 0
        or seen.free_cpu < 0
        or tuning_rules.stage_limits(seen, tuning.rules, at).workers(notes.cpu) > notes.workers
    ):
        return None
    with_it = tuning_rules.stage_limits(replace(seen, free_cpu=seen.free_cpu + lent * seen.trainers), tuning.rules, at)
    wanted = tuning_rules.needed(seen.stages[at].capable_per_s, notes.rate, MARGIN)
    count = min(wanted, with_it.workers(notes.cpu))
    if count <= notes.workers:
        return None
    cores = tuning_rules.lend(tuning.trainer, seen, lent, tuning.stages)
    grown = _with(tuning.stages, at, replace(notes, workers=count, settled=False, short_for=0))
    tuning = replace(tuning, trainer=cores, stages=grown)
    return tuning, _target(
        tuning,
        f"no cores are free, and trainers that wait {seen.last.wait_share:.0%} of their time use "
        f"{seen.trainer_cpu_used:.2g} of {seen.trainer_cpu:g}: {lent:g} of each for {count - notes.workers} more",
    )


def _after_trial(tuning: Tuning, seen: FeedSeen) -> Decided:
    """Judge a trial: more cores for trainers, or trainers' cores lent to data workers."""
    before, stages = tuning.trainer, tuning.stages
    notes, why = tuning_rules.judge(before, seen)
    if before.growing and not notes.in_vain:
        stages = tuple(replace(stage, ceiling=None, settled=False) for stage in stages)
    elif not before.growing and notes.lent_in_vain:
        stages = before.lent_from
    tuning = replace(tuning, trainer=notes, stages=stages)
    return tuning, _target(tuning, why)


def _off(tuning: Tuning, why: str) -> Decided:
    """Return to training without data workers: trainers read their own data, with their original cores."""
    first = replace(TrainerNotes(), cpu=tuning.trainer.first)
    tuning = replace(tuning, phase=TuningPhase.OFF, stages=(), trainer=first, strange_for=0, late_for=0, doubted_for=0)
    return tuning, _target(tuning, why)
