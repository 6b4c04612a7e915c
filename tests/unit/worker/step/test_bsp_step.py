"""The step of a bsp group over fakes: what ranks do together, when a step counts, what a lost member changes."""

from types import SimpleNamespace

import pytest
import torch

from springtide import errors
from springtide.worker.bsp.group import DataPosition, GroupPlace
from springtide.worker.input.batch_plan import BatchUnit
from springtide.worker.step.bsp_step import BspStep
from tests.unit.worker.step.recorded import Recorder, Rows, batch, claim

LOST = errors.GroupChanged("rank 1 is lost")


class Group:
    """`forms` are the answers of the next groups: the last complete step, or -1 at the end of the job."""

    def __init__(self, calls):
        self._calls, self.forms, self.losses = calls, [], []
        self.place, self.save_due = GroupPlace(1, 3, 5), False

    def await_complete(self, number):
        self._calls.append(("complete", number))
        if self.losses and self.losses.pop(0):
            raise LOST

    def form(self, step):
        self._calls.append("form")
        formed = self.forms.pop(0) if self.forms else 0
        if formed > 0:
            step.catch_up(formed)
        return formed

    def keep(self, step, applied):
        self._calls.append(("keep", applied))

    def rest(self, step):
        self._calls.append("rest")


class Coordinator:
    def __init__(self, calls):
        self._calls, self.clean, self.bound = calls, True, False

    def __getattr__(self, name):
        def record(*values, **named):
            self._calls.append((name, *values, *named.values()))

        return record


class Units:
    """Units of a batch: the last one of a batch completes it."""

    def __init__(self, calls):
        self._calls, self.share, self.now = calls, 0.25, None

    def begin(self, unit):
        self.now = unit

    def keep(self, stepped, parts):
        self._calls.append(("kept", len(stepped), len(parts)))
        return self.now.last

    def parts(self):
        return ["summed rows"]

    def check_kept(self):
        self._calls.append("check")

    def drop(self):
        self._calls.append("drop")


class Loop:
    def __init__(self, optimizers=1, *, coordinator=False, units=False, named=True):
        self.parts = Recorder(optimizers)
        self.group = Group(self.parts.calls)
        self.coordinator = Coordinator(self.parts.calls) if coordinator else None
        self.units = Units(self.parts.calls) if units else None
        self.step = BspStep(
            self.parts.context,
            self.parts.own,
            self.group,
            coordinator=self.coordinator,
            units=self.units,
            named=named,
        )

    def train(self, *batches):
        for now in batches:
            self.step.hand_out(now, None)
            self.step_all()
            self.step.on_batch_done()

    def step_all(self):
        for param in self.parts.params:
            param.sum().backward()
        for optimizer in self.step.optimizers:
            optimizer.step()

    @property
    def pushes(self):
        return [(push.step, push.batches) for push in self.parts.client.pushes]


# ---- the step ----


def test_step_counts_when_all_servers_have_it_and_is_then_applied():
    loop = Loop()
    loop.step.hand_out(batch(0, 4, share=0.5), None)
    loop.parts.take()
    loop.step_all()
    assert loop.parts.take() == [
        "step began",
        ("agree", 0.5, False, False),
        ("push", 1),
        ("wait", 1),
        ("complete", 1),
        ("acknowledge", [claim(0, 4)]),
        ("trained", [claim(0, 4)]),
        ("update", 1),
        ("apply", 1),
        "clear rows",
        ("step done", 4),
        "on step",
    ]
    assert loop.step.count == loop.parts.lookups.after_step == 1


def test_push_weights_rows_with_the_ranks_share():
    loop = Loop()
    rows = Rows()
    loop.parts.lookups.parts = [rows]
    loop.train(batch(0, 4, share=0.5))
    (push,) = loop.parts.client.pushes
    assert push.parts == [rows, "dense"] and push.hyper == [("rates", 1)] and push.bsp and push.clock == 1
    assert push.batches == [(100, 0, 0, 4)]
    assert rows.values.tolist() == [0.5, 0.5]


def test_rows_of_a_whole_batch_keep_their_bits():
    loop = Loop()
    rows = Rows()
    rows.grads = lambda: pytest.fail("a share of 1 scales nothing")
    loop.parts.lookups.parts = [rows]
    loop.train(batch(0, 4))
    assert loop.parts.client.pushes[0].parts == [rows, "dense"]


def test_group_may_skip_a_step_that_this_rank_would_take():
    loop = Loop()
    loop.parts.dense.skips = [True]
    loop.train(batch(0, 4))
    (push,) = loop.parts.client.pushes
    assert push.parts == push.hyper == [] and loop.step.count == 1
    assert loop.parts.take("update", "acknowledge") == [("acknowledge", [claim(0, 4)])]


def test_overflow_asks_the_group_to_skip_one_step():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), None)
    loop.step.optimizers[0].found_inf = torch.tensor(1.0)
    loop.step_all()
    loop.step.optimizers[0].found_inf = torch.tensor(0.0)
    loop.train(batch(4, 4))
    assert loop.parts.take("agree") == [("agree", 1.0, True, False), ("agree", 1.0, False, False)]


def test_step_in_the_middle_of_a_sum_is_refused():
    loop = Loop()
    loop.step.hand_out(batch(0, 4, last=False), None)
    with pytest.raises(errors.BadInput, match="in the middle of a sum"):
        loop.step_all()


def test_group_reads_no_rows_ahead_and_lets_optimizers_grow():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), batch(4, 4))
    assert loop.parts.take("prefetch", "looked up") == [("prefetch", "batch 0", 0), ("looked up", 1.0)]
    loop.step.optimizers[0].add_param_group({"params": [torch.zeros(1, requires_grad=True)]})


def test_seat_is_the_rank_in_the_present_group():
    loop = Loop()
    assert loop.step.seat == (1, 3)
    loop.group.place = GroupPlace(0, 2, 6)
    assert loop.step.seat == (0, 2)


# ---- lost members ----


def test_step_is_repeated_by_the_next_group_without_scaling_rows_again():
    loop = Loop()
    rows = Rows()
    loop.parts.lookups.parts, loop.group.losses = [rows], [True]
    loop.train(batch(0, 4, share=0.5))
    assert loop.parts.take("agree", "push", "form", "acknowledge", "apply") == [
        ("agree", 0.5, False, False),
        ("push", 1),
        "form",
        ("agree", 0.5, False, True),
        ("push", 1),
        ("acknowledge", [claim(0, 4)]),
        ("apply", 1),
    ]
    assert rows.values.tolist() == [0.5, 0.5] and loop.step.count == 1
    assert [push.hyper for push in loop.parts.client.pushes] == [[("rates", 1)]] * 2


def test_step_that_the_next_group_found_complete_is_not_repeated():
    loop = Loop()
    loop.group.losses, loop.group.forms = [True], [1]
    loop.train(batch(0, 4))
    assert loop.pushes == [(1, [(100, 0, 0, 4)])] and loop.step.count == 1
    assert loop.parts.take("acknowledge", "apply") == [("acknowledge", [claim(0, 4)]), ("apply", 1)]
    loop.step.catch_up(2)
    assert loop.step.count == 1, "without a step under way there is nothing to finish"


def test_step_under_way_is_not_finished_by_an_earlier_one():
    loop, seen = Loop(), []
    loop.step.count = 4
    loop.group.await_complete = lambda number: (loop.step.catch_up(4), seen.append(loop.step.count))
    loop.train(batch(0, 4))
    assert seen == [4] and loop.step.count == 5


def test_loss_in_the_sum_of_gradients_repeats_the_step():
    loop = Loop(coordinator=True)
    loop.parts.dense.skips = [LOST]
    loop.train(batch(0, 4))
    kinds = ("agree", "form", "restart", "set_words", "stepped")
    assert loop.parts.take(*kinds) == [
        ("set_words", False),
        ("agree", 1.0, False, False),
        "form",
        ("restart", loop.group.place),
        ("set_words", False),
        ("agree", 1.0, False, True),
        ("stepped", 1, False),
    ]


def test_job_that_stops_leaves_the_step_untrained(caplog):
    loop = Loop(units=True, coordinator=True)
    loop.group.losses, loop.group.forms = [True], [-1]
    unit = BatchUnit(0, 0.25, True, True)
    loop.step.hand_out(batch(0, 4, unit=unit), None)
    loop.step_all()
    assert loop.step.count == 0 and loop.step.idle
    assert loop.parts.take("acknowledge", "apply", "drop", "restart") == ["drop"]
    assert "step 1 was interrupted: rank 1 is lost" in caplog.text


def test_counts_leave_out_the_step_under_way():
    loop, seen = Loop(2), []
    loop.parts.rates.steps = [7, 9]
    loop.group.await_complete = lambda number: seen.append(loop.step.counts())
    loop.step.hand_out(batch(0, 4), None)
    loop.step.optimizers[1].step()
    loop.step.on_batch_done()
    assert seen == [[7, 8]] and loop.step.counts() == [7, 9]


# ---- the position in the data ----


def test_position_is_the_first_sample_that_the_group_has_not_trained():
    loop = Loop()
    assert loop.step.position() == DataPosition(0, 0)
    loop.step.hand_out(batch(8, 4, shard=2), None)
    loop.step.hand_out(batch(16, 4, shard=3), None)
    assert loop.step.position() == DataPosition(2, 8)
    loop.step_all()
    assert loop.step.position() == DataPosition(3, 20)
    loop.train(batch(0, 4, claims=False))
    assert loop.step.position() == DataPosition(3, 20)


def test_rank_that_joins_begins_where_the_group_is():
    loop = Loop()
    loop.step.begin_at(6, DataPosition(2, 8), [6])
    assert loop.step.count == loop.parts.lookups.after_step == 6 and loop.parts.rates.steps == [6]
    assert loop.step.position() == DataPosition(2, 8) and loop.parts.take("skip to") == [("skip to", 2, 8)]


# ---- pauses for checkpoints and new groups ----


def test_idle_group_may_pause_after_its_step():
    loop = Loop()
    assert loop.step.idle
    loop.step.on_batch_done()
    assert loop.parts.take("keep") == [("keep", None)]
    loop.step.hand_out(batch(0, 4), None)
    assert not loop.step.idle
    loop.step.on_batch_done()
    assert loop.parts.take("keep") == []
    loop.step_all()
    loop.step.on_batch_done()
    assert loop.parts.take("keep") == [("keep", "applied 1")]


def test_step_under_way_is_not_idle():
    loop, seen = Loop(), []
    loop.group.await_complete = lambda number: seen.append(loop.step.idle)
    loop.train(batch(0, 4))
    loop.step.on_batch_done()
    assert seen == [False] and loop.step.idle


def test_batch_without_a_lease_binds_the_group():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), None)
    assert not loop.step.bound
    loop.step_all()
    loop.step.hand_out(batch(4, 4, claims=False), None)
    assert loop.step.bound
    loop.step_all()
    assert not loop.step.bound


def test_cached_rows_bind_the_group_which_then_does_not_pause():
    loop = Loop(coordinator=True)
    assert not loop.step.bound
    loop.coordinator.bound = True
    assert loop.step.bound
    loop.train(batch(0, 4))
    assert loop.parts.take("keep") == []


def test_group_forms_again_only_for_its_present_generation():
    loop = Loop(coordinator=True)
    loop.step.regroup(4)
    assert loop.parts.take() == []
    loop.step.regroup(5)
    assert loop.parts.take() == ["form", ("restart", loop.group.place)]
    Loop().step.regroup(5)  # without a cache


def test_script_that_ends_stays_in_the_group():
    loop = Loop()
    loop.step.retire()
    assert loop.parts.take() == ["rest"]


# ---- batches without samples, and cached rows ----


@pytest.mark.parametrize("coordinator", [False, True])
def test_skipped_batch_is_an_empty_step_that_keeps_the_loops_batch(coordinator):
    loop = Loop(coordinator=coordinator)
    loop.step.hand_out(batch(0, 4), None)
    loop.parts.take()
    loop.step.skip(batch(4, 4))
    assert loop.pushes == [(1, [(100, 0, 4, 4)])] and loop.parts.client.pushes[0].parts == []
    calls = loop.parts.take("agree", "set_words", "stepped", "acknowledge")
    assert ("agree", 1.0, True, False) in calls and ("acknowledge", [claim(4, 4)]) in calls
    assert (("set_words", True) in calls and ("stepped", 1, True) in calls) is coordinator
    loop.step_all()
    assert loop.pushes[1:] == [(2, [(100, 0, 0, 4)])]


def test_skipped_batch_of_a_job_that_stops_drops_the_loops_batch():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), None)
    loop.group.losses, loop.group.forms = [True], [-1]
    loop.step.skip(batch(4, 4))
    assert loop.step.count == 0 and loop.step.idle


def test_cached_rows_are_written_in_an_empty_step():
    loop = Loop(coordinator=True)
    loop.step.flush()
    assert loop.pushes == [], "servers have all rows"
    loop.coordinator.clean = False
    loop.step.flush_now()
    assert loop.pushes == [(1, [])]
    assert loop.parts.take("set_words", "apply_verdict", "share_gradients", "stepped") == [
        ("set_words", True),
        ("apply_verdict", 1),
        ("share_gradients", 1, []),
        ("stepped", 1, True),
    ]


def test_flush_in_the_middle_of_a_step_is_refused():
    loop = Loop(coordinator=True)
    loop.step.hand_out(batch(0, 4), None)
    with pytest.raises(errors.BadInput, match=r"job\.flush\(\) in the middle of a step"):
        loop.step.flush_now()
    loop.step_all()
    loop.step.flush_now()
    assert len(loop.pushes) == 1
    without_cache = Loop()
    without_cache.step.hand_out(batch(0, 4), None)
    without_cache.step.flush_now()
    assert without_cache.pushes == []


def test_coordinator_learns_each_batch_and_each_step():
    loop = Loop(coordinator=True)
    now, rows = batch(0, 4), Rows()
    loop.parts.lookups.parts = [rows]
    loop.train(now)
    assert loop.parts.take("hand_out", "apply_verdict", "share_gradients", "stepped") == [
        ("hand_out", now, 1),
        ("apply_verdict", 1),
        ("share_gradients", 1, [rows]),
        ("stepped", 1, False),
    ]


def test_accumulated_batch_writes_cached_rows_and_ends_scheduling():
    loop = Loop(coordinator=True)
    loop.coordinator.bound, loop.coordinator.clean = True, False
    loop.step.hand_out(batch(0, 4, last=False), None)
    loop.step.on_batch_done()
    assert loop.pushes == [(1, [])]
    assert loop.parts.take("accumulated") == [("accumulated",)]
    loop.coordinator.bound = False
    loop.step.on_batch_done()
    assert loop.parts.take("accumulated") == []
    idle = Loop(coordinator=True)
    idle.coordinator.bound = True
    idle.step.on_batch_done()
    assert idle.parts.take("accumulated") == []


@pytest.mark.parametrize("early", [False, True])
def test_end_of_a_pass_writes_cached_rows(early):
    loop = Loop(coordinator=True)
    loop.coordinator.clean = False
    loop.step.close_pass(early=early)
    assert loop.parts.take("push", "end_pass", "release") == [
        ("push", 1),
        ("end_pass", loop.group.place, early),
        "release",
    ]
    Loop().step.close_pass(early=early)  # without a cache


# ---- gradients in the order of the batch ----


def units_of(first, *, count=2):
    places = [BatchUnit(n, 1 / count, first=n == 0, last=n == count - 1) for n in range(count)]
    return [batch(first, 4, unit=unit) for unit in places]


def test_units_of_a_batch_are_kept_and_pushed_once():
    loop = Loop(units=True)
    rows = Rows()
    loop.parts.lookups.parts = [rows]
    first, second = units_of(0)
    loop.train(first)
    assert loop.pushes == [] and not loop.step.idle
    assert rows.values.tolist() == [0.25, 0.25], "rows have the weight of the unit"
    assert loop.parts.take("kept", "check", "clear rows", "keep") == [("kept", 1, 1), "clear rows", "check"]
    loop.train(second)
    (push,) = loop.parts.client.pushes
    assert push.parts == ["summed rows", "dense"] and push.batches == [(100, 0, 0, 4)]
    assert loop.parts.take("kept", "drop", "keep") == [("kept", 1, 1), "drop", ("keep", "applied 1")]


def test_sums_of_units_are_computed_again_for_the_next_group():
    loop, sums = Loop(units=True), iter([["of three ranks"], ["of two ranks"]])
    loop.units.parts = lambda: next(sums)
    loop.group.losses = [True]
    loop.train(*units_of(0, count=1))
    assert [push.parts[0] for push in loop.parts.client.pushes] == ["of three ranks", "of two ranks"]


def test_batch_with_an_overflow_keeps_no_rows_and_is_skipped():
    loop = Loop(units=True)
    loop.parts.lookups.parts = [Rows()]
    first, second = units_of(0)
    loop.step.optimizers[0].found_inf = torch.tensor(1.0)
    loop.train(first)
    assert loop.parts.take("kept") == [("kept", 1, 0)]
    loop.step.optimizers[0].found_inf = torch.tensor(0.0)
    loop.train(second)
    assert loop.parts.take("agree") == [("agree", 1.0, True, False)]
    assert loop.parts.client.pushes[0].parts == []


def test_loop_that_breaks_drops_the_units_of_its_batch():
    loop = Loop(2, units=True)
    first, _ = units_of(0)
    loop.step.hand_out(first, None)
    loop.step.optimizers[0].step()
    loop.step._skip = True
    loop.step.close_pass(early=True)
    assert loop.pushes == [] and loop.step.idle and loop.step._stepped == [] and not loop.step._skip
    assert loop.parts.take("drop") == ["drop"]


def test_loop_that_breaks_without_units_drops_its_batch():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), None)
    loop.step.close_pass(early=True)
    assert loop.pushes == [] and loop.step.idle


def test_batch_without_units_is_trained_as_a_whole():
    loop = Loop(units=True)
    loop.units.begin = lambda unit: pytest.fail("the batch has no units")
    loop.units.now = SimpleNamespace(last=True)
    loop.train(batch(0, 4))
    assert loop.pushes == [(1, [(100, 0, 0, 4)])]
