"""Epochs across restarts of a worker: each resumes at its position with its rates."""

import copy
import gc
import re
import sys
import types
import weakref

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

from springtide import config, errors
from springtide.domain.data.leases import LeaseHolder, NoLease
from springtide.domain.data.samples import EpochPlace
from springtide.domain.spec.job_spec import JobSpec
from springtide.master.checkpoint.round import AT_START
from springtide.master.core.record import JobRecord
from springtide.rpc.messages.messages import DataEnd, EpochBegun, LeaseReply
from springtide.worker.epochs import user_objects
from springtide.worker.job import Job
from springtide.worker.link.master_link import LocalMaster, local_link

SAMPLES, BATCH = 12, 4
BATCHES = SAMPLES // BATCH


pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")  # a schedule that is stepped first in an epoch


class Killed(Exception):
    """This life ends here."""


class LifeMaster(LocalMaster):
    """One life of a worker; the record, with its book, outlives it."""

    def __init__(self, record, life):
        super().__init__(config.load({"report_every_s": 60.0}, environ={}))
        self._record, self._holder = record, LeaseHolder(0, life)

    def welcome(self):
        record = self._record
        place, objects = record.scripts.place_for(0), record.scripts.objects_for(0)
        return msgspec.structs.replace(
            super().welcome(), place=place, lived=0 in record.scripts.places, objects=objects
        )

    def ask(self, request):
        if isinstance(request, EpochBegun):
            self._record.scripts.remember(0, request.objects, request.place)
        return super().ask(request)

    def die(self, link):
        """End this life; its last heartbeat has reported the trained samples."""
        link.leases.tracker.release_all()
        self._record.book.report(self._holder, link.leases.tracker.report().progress, at=0.0)

    def lease(self, asked):
        book = self._record.book
        book.report(self._holder, asked.progress, at=0.0)
        if asked.ends is not None:
            book.end(self._holder, asked.card, asked.ends)
        known = [(one.shard, one.first) for one in asked.progress]
        answer = book.lease(self._holder, asked.card, asked.most, at=0.0, known=known)
        return DataEnd() if isinstance(answer, NoLease) else LeaseReply(answer)


class StepCountsOf:
    """Rates that depend on these numbers of steps."""

    follow_steps = True

    def __init__(self, steps):
        self.steps = steps


class Worker:
    """A worker that is started again and again."""

    def __init__(self):
        self.record, self.lives = JobRecord(JobSpec(name="job")), 0

    def start(self):
        self.lives += 1
        settings = config.load(environ={})
        link = local_link(settings, LifeMaster(self.record, self.lives))
        link.reports.keep_objects = lambda states, place: self.record.scripts.remember(0, states, place)
        return Job(settings, link)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(SAMPLES).reshape(-1, 1, 1))


def prepare_script(job, *, data=None, schedule=None, register=False, lr=1.0, **options):
    """Everything a script has before its loop."""
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    own = torch.optim.SGD(model.parameters(), lr=lr)
    schedule = (schedule or (lambda own: torch.optim.lr_scheduler.StepLR(own, step_size=1, gamma=0.5)))(own)
    if register:
        job.register(schedule)
    data = TensorDataset(torch.arange(float(SAMPLES)).reshape(-1, 1)) if data is None else data
    model, optimizer, batches = job.prepare(model, own, data, batch_size=BATCH, **options)
    return model, optimizer, schedule, batches


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x[0].float() if isinstance(x, list | tuple) else x[:, 0].float()).mean().backward()
    optimizer.step()


def run(worker, *, epochs=4, top=False, die=None, by="job.epochs", leave=None, **options):
    """Run one life: its batches as (epoch, epoch by the data, rate, repeated). It dies at `die`: (epoch, batch)."""
    job = worker.start()
    model, optimizer, scheduler, batches = prepare_script(job, **options)
    seen, after = [], []
    try:
        for epoch in job.epochs(epochs) if by == "job.epochs" else range(epochs):
            if top and epoch:
                scheduler.step()
            for number, x in enumerate(batches):
                if (epoch, number) == die:
                    raise Killed
                seen.append((epoch, batches.epoch, optimizer.param_groups[0]["lr"], batches.repeated))
                step(model, optimizer, x)
                if (epoch, number) == leave:
                    job._link.dismiss()
            if (epoch, "after") == die:
                raise Killed
            after.append(epoch)
            if not top:
                scheduler.step()
    except Killed:
        pass
    except SystemExit as end:
        assert end.code == 0
        after.append("ended")
    job._link._master.die(job._link)
    return seen, after


def undisturbed_run(**options):
    """What the loop of an undisturbed worker sees."""
    return run(Worker(), **options)[0]


WAYS = [{"register": True}, {}, {"top": True}, {"top": True, "register": True}]


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("die", [(2, 1), (2, 0), (3, 2), (0, 1)])
def test_restarted_worker_resumes_in_the_last_epoch_with_its_rate(options, die):
    worker = Worker()
    before, _ = run(worker, die=die, **options)
    seen, after = run(worker, **options)
    assert after == list(range(die[0], 4)), "finished epochs are not gone through again"
    assert before + seen == undisturbed_run(**options), (
        "no batch is lost or repeated, and every rate is that of its epoch"
    )


def test_learning_rates_match_their_epochs_across_many_restarts():
    worker, seen = Worker(), []
    for die in [(0, 2), (1, 1), (1, 1), (2, 1), (3, 0)]:
        seen += run(worker, die=die)[0]
    assert seen + run(worker)[0] == undisturbed_run()


def test_restart_after_the_loop_reenters_the_epoch_with_an_untrained_batch():
    worker = Worker()
    before, _ = run(worker, die=(1, "after"))
    seen, after = run(worker)
    assert seen[0] == (1, 1, 0.5, True), "what follows the loop has not been done: it gets a batch for it"
    assert before + seen[1:] == undisturbed_run() and after == [1, 2, 3]


def test_repeated_batch_changes_neither_weights_nor_buffers():
    worker = Worker()
    run(worker, epochs=1, die=(0, "after"))
    job = worker.start()
    model, optimizer, _, batches = prepare_script(job)
    before = copy.deepcopy(model.state_dict())
    for x in batches:
        assert batches.repeated
        step(model, optimizer, x)
        assert any(param.grad is not None for param in model.parameters())
    assert not batches.repeated
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(param.grad is None for param in model.parameters()), "nothing of it is left for the next step"


def test_finished_job_reenters_the_last_epoch_so_its_variables_exist():
    worker = Worker()
    whole, _ = run(worker, epochs=2)
    seen, after = run(worker, epochs=2)
    assert after == [1] and [repeated for *_, repeated in seen] == [True]
    more, after = run(worker, epochs=4)
    assert after == [2, 3], "a resumed run with more epochs goes on behind them"
    assert whole + more == undisturbed_run()


@pytest.mark.parametrize("options", WAYS)
def test_plain_loop_that_cannot_be_resumed_gets_one_batch_per_finished_epoch(options, caplog):
    worker = Worker()
    before, _ = run(worker, by="range", die=(2, 1), **options)
    seen, after = run(worker, by="range", **options)
    assert [(epoch, by_data, repeated) for epoch, by_data, _, repeated in seen[:2]] == [(0, 0, True), (1, 1, True)]
    assert before + seen[2:] == undisturbed_run(by="range", **options) and after == [0, 1, 2, 3]
    assert "epochs before 2 were trained before this worker was started" in caplog.text


@pytest.mark.parametrize("by", ["job.epochs", "range"])
def test_worker_asked_to_leave_keeps_its_position_and_starts_no_epoch(by):
    worker = Worker()
    before, after = run(worker, by=by, leave=(1, 0))
    assert after == ([0, 1] if by == "job.epochs" else [0, 1, "ended"])
    seen, _ = run(worker, by="job.epochs")
    assert before + seen == undisturbed_run(), (
        "the rest of the epoch, at its own rate: what followed the loop is not kept"
    )


def test_two_loops_in_one_epoch_are_both_resumed():
    worker, seen = Worker(), []

    def life(die=None):
        job = worker.start()
        model, optimizer, scheduler, batches = prepare_script(job)
        try:
            for epoch in job.epochs(3):
                for turn in "first", "second":
                    for number, x in enumerate(batches):
                        if (epoch, turn, number) == die:
                            raise Killed
                        if not batches.repeated:
                            seen.append((epoch, turn, optimizer.param_groups[0]["lr"]))
                        step(model, optimizer, x)
                    scheduler.step()
        except Killed:
            job._link._master.die(job._link)

    life()
    expected, worker = seen, Worker()
    seen = []
    life((1, "second", 1))
    life((2, "first", 2))
    life()
    assert seen == expected


def test_iterable_dataset_resumes_in_its_epoch():
    worker = Worker()
    before, _ = run(worker, data=Stream(), die=(1, 1))
    seen, after = run(worker, data=Stream())
    assert after == [1, 2, 3] and before + seen == undisturbed_run(data=Stream())


def test_epochs_are_counted_over_the_whole_job():
    job = Worker().start()
    prepare_script(job)
    assert list(job.epochs(2)) == [0, 1]
    assert list(job.epochs(5)) == [2, 3, 4] and list(job.epochs(5)) == []


def test_invalid_or_nested_epochs_are_refused():
    job = Worker().start()
    with pytest.raises(errors.BadInput, match="epochs"):
        job.epochs(1.5)
    running = job.epochs(3)
    next(running)
    with pytest.raises(errors.BadInput, match="inside another"):
        job.epochs(3)
    running.close()
    other = Worker().start()
    prepare_script(other, epochs=3)
    with pytest.raises(errors.BadInput, match=re.escape("Leave epochs= out of job.prepare")):
        other.epochs(3)


def test_loop_over_several_epochs_reports_the_current_epoch():
    worker = Worker()
    job = worker.start()
    model, optimizer, _, batches = prepare_script(job, epochs=3)
    assert batches.epoch == 0 and len(batches) == 3 * BATCHES
    for number, x in enumerate(batches):
        if number == BATCHES + 1:
            assert batches.epoch == 1
            job._link._master.die(job._link)
            break
        step(model, optimizer, x)
    job = worker.start()
    _, _, _, batches = prepare_script(job, epochs=3)
    assert next(batches.epoch for _ in batches) == 1


def manual_schedule(own):
    """Change the rates of the groups by hand instead of with a scheduler."""

    class Halving:
        def step(self):
            own.param_groups[0]["lr"] *= 0.5

    return Halving()


def test_manually_set_learning_rates_survive_a_restart():
    worker = Worker()
    before, _ = run(worker, die=(2, 1), schedule=manual_schedule)
    assert before + run(worker, schedule=manual_schedule)[0] == undisturbed_run(schedule=manual_schedule)


def with_new_data(worker):
    """Begin a run with the objects of this worker's run."""
    objects, worker.record, worker.lives = worker.record.scripts.objects, JobRecord(JobSpec(name="job")), 0
    worker.record.scripts.reset(objects, AT_START)


@pytest.mark.parametrize("register", [False, True])
def test_run_with_new_data_begins_at_epoch_0_with_the_schedules_of_the_other_run(register):
    worker = Worker()
    run(worker, epochs=3, register=register)
    with_new_data(worker)
    before, _ = run(worker, epochs=2, register=register, die=(1, 1))
    seen = before + run(worker, epochs=2, register=register)[0]
    assert seen == [(epoch, epoch, 0.125 / 2**epoch, False) for epoch in range(2) for _ in range(BATCHES)]


def test_renamed_schedule_starts_over_with_new_data():
    worker = Worker()

    def rates(day):
        job = worker.start()
        model, optimizer, schedules, batches = prepare_script(
            job, schedule=lambda own: {day: torch.optim.lr_scheduler.StepLR(own, step_size=1, gamma=0.5)}
        )
        seen = []
        for _ in job.epochs(2):
            seen.append(optimizer.param_groups[0]["lr"])
            for x in batches:
                step(model, optimizer, x)
            schedules[day].step()
        job._link._master.die(job._link)
        with_new_data(worker)
        return seen

    assert [rates("monday"), rates("tuesday"), rates("tuesday")] == [[1.0, 0.5], [1.0, 0.5], [0.25, 0.125]]


def test_step_counts_of_optimizers_go_on_after_a_restart():
    before, after = StepCountsOf([7]), StepCountsOf([0])
    saved = user_objects.Schedules([], lambda _: False, before).state_dict()
    user_objects.Schedules([], lambda _: False, after).load_state_dict(saved)
    assert after.steps == [7]
    assert user_objects.Schedules([], lambda _: False).state_dict()["steps"] == [], "a bsp group saves them itself"


def test_schedulers_are_found_in_the_scripts_variables():
    class Odd:
        """Does something when an attribute is read."""

        def __getattr__(self, name):
            raise AssertionError(name)

    job = Worker().start()
    _, optimizer, _first, _ = prepare_script(job)
    second = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    third = torch.optim.lr_scheduler.ConstantLR(optimizer.own)
    registered = job.register(torch.optim.lr_scheduler.LinearLR(optimizer))
    foreign = torch.optim.lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), 1)

    def loop(trainer, schedulers, odd):
        job._tracker.schedules.find_schedulers(sys._getframe())

    loop(types.SimpleNamespace(schedule=second), {"own": third, "theirs": foreign, "known": registered}, Odd())
    assert set(job._tracker.schedules.state_dict()["schedules"]) == {"trainer.schedule", "schedulers.own", "_first"}


def test_scheduler_search_keeps_no_reference_to_user_objects():
    class Large:
        pass

    job = Worker().start()
    prepare_script(job)

    def loop():
        large = Large()
        gone = weakref.ref(large)
        job._tracker.schedules.find_schedulers(sys._getframe())
        del large
        gc.collect()
        return gone() is None

    assert loop()


def test_resumed_script_with_changed_rates_keeps_the_new_rates(caplog):
    worker = Worker()
    run(worker, die=(2, 1))
    seen, _ = run(worker, lr=0.1)
    assert [rate for epoch, _, rate, _ in seen if epoch == 2] == [0.1, 0.1]
    assert "the script sets other learning rates" in caplog.text


def test_error_in_the_epoch_of_a_restart_mentions_the_restart():
    worker = Worker()
    run(worker, die=(2, 1))
    job = worker.start()
    model, optimizer, _, batches = prepare_script(job)
    told = []
    for _ in job.epochs(4):
        for x in batches:
            told.append(job._link.started_late)
            step(model, optimizer, x)
    assert told == ["restarted in epoch 2"] * 2 + [""] * BATCHES


def test_new_rank_starts_at_the_furthest_rank():
    record = JobRecord(JobSpec(name="job"))
    record.scripts.remember(0, {"schedule": b"of 0"}, EpochPlace(3, 3, 4))
    record.scripts.remember(1, {"schedule": b"of 1"}, EpochPlace(4, 4, 5))
    record.scripts.remember(2, {"schedule": b"of 2"}, EpochPlace(4, 4, 5))
    assert record.scripts.place_for(5) == EpochPlace(4, 4, 5) and record.scripts.objects_for(5) == {"schedule": b"of 1"}
    assert record.scripts.place_for(0) == EpochPlace(3, 3, 4) and record.scripts.objects_for(0) == {"schedule": b"of 0"}
    record.scripts.remember(1, {"schedule": b"late"}, EpochPlace(3, 3, 4))
    assert record.scripts.objects_for(1) == {"schedule": b"of 1"}, "a heartbeat that was overtaken changes nothing"


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.dense = nn.EmbeddingBag(50, 4, mode="sum"), nn.Linear(4, 1)

    def forward(self, x):
        return self.dense(self.rows(x)).squeeze(1)


@pytest.mark.parametrize(
    ("sync", "options"),
    [
        ("async", {}),
        ("async", {"accumulate": 2}),
        ("async", {"max_staleness": 0}),
        ("bsp", {}),
        ("bsp", {"reduction": "batch-order"}),
    ],
)
def test_worker_without_remaining_work_gets_a_batch_that_is_never_applied(served_job, sync, options):
    job = served_job(servers=2, sync=sync)
    model = Mixed()
    own = torch.optim.Adagrad(model.parameters(), lr=0.5)
    data = TensorDataset(torch.arange(40).reshape(-1, 1), torch.ones(40))
    model, optimizer, batches = job.prepare(model, own, data, batch_size=8, **options)
    before = copy.deepcopy(model.state_dict())
    job._link.leases.lease = lambda *_: DataEnd()  # others have trained all of it

    def losses():
        for x, y in batches:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            if batches.completes_step:
                optimizer.step()
            yield loss.item()

    assert len(list(losses())) == 1 and job._wired.step.count == 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    del job._link.leases.lease
    assert len(list(losses())) > 1 and job._wired.step.count > 1, "and the next epoch is trained as ever"
    job.finish()
