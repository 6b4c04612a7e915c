"""The step of a worker that trains alone: its pushes, their acknowledgement, and reading ahead."""

import pytest
import torch

from springtide import errors
from springtide.worker.step.async_step import AsyncStep
from springtide.worker.step.step import PushBatches, StepListener, UnsteppedGradients
from tests.oracles.rws_adagrad import RWSAdagrad
from tests.unit.worker.step.recorded import Recorder, Rows, batch, claim


class Loop:
    """A training loop over a step of fakes."""

    def __init__(self, optimizers=1, *, served=True, named=True, max_staleness=None, watched=False):
        self.parts = Recorder(optimizers)
        self.unstepped = UnsteppedGradients(self.parts.lookups, self.parts.params, tables=False) if watched else None
        self.step = AsyncStep(
            self.parts.context,
            self.parts.own,
            served=served,
            named=named,
            max_staleness=max_staleness,
            unstepped=self.unstepped,
        )

    def train(self, *batches):
        for now in batches:
            self.step.hand_out(now, None)
            self.backward()
            for optimizer in self.step.optimizers:
                optimizer.step()
            self.step.on_batch_done()

    def backward(self):
        for param in self.parts.params:
            param.sum().backward()

    @property
    def pushes(self):
        return [(push.step, push.batches) for push in self.parts.client.pushes]


# ---- pushes ----


def test_push_has_gradients_rates_and_the_identity_of_its_batch():
    loop = Loop()
    loop.parts.lookups.parts = rows = [Rows()]
    loop.train(batch(8, 4, shard=3))
    (push,) = loop.parts.client.pushes
    assert push.parts == [*rows, "dense"] and push.hyper == [("rates", 1)]
    assert push.batches == [(100, 3, 8, 4)]
    assert (push.step, push.clock, push.bsp, loop.step.count) == (1, 1, False, 1)


def test_push_is_acknowledged_before_the_next_push_is_sent():
    loop = Loop()
    loop.train(batch(0, 4), batch(4, 4))
    loop.step.rest()
    first, second = [claim(0, 4)], [claim(4, 4)]
    assert loop.parts.take("push", "wait", "acknowledge", "trained") == [
        ("push", 1),
        ("wait", 1),
        ("acknowledge", first),
        ("trained", first),
        ("push", 2),
        ("wait", 2),
        ("acknowledge", second),
        ("trained", second),
    ]
    loop.step.rest()
    assert loop.parts.take("wait", "acknowledge") == [], "each push is waited for once"


def test_step_updates_the_model_after_its_push_and_then_counts_samples():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), None)
    loop.parts.take()
    loop.step.optimizers[0].step()
    assert loop.parts.take() == [
        "step began",
        ("agree", 1.0, False, False),
        ("push", 1),
        ("update", 1),
        "clear rows",
        ("step done", 4),
        "on step",
    ]


def test_push_without_identities_names_no_batch():
    loop = Loop(named=False)
    loop.train(batch(0, 4))
    assert loop.pushes == [(1, ())]


def test_rows_of_an_earlier_job_go_on_ageing():
    parts = Recorder()
    parts.client.age = 30
    step = AsyncStep(parts.context, parts.own, served=True, named=True)
    step.skip(batch(0, 4))
    step.skip(batch(4, 4))
    assert [push.clock for push in parts.client.pushes] == [31, 32]


def test_rows_age_by_the_listeners_clock():
    loop = Loop()
    loop.parts.listener.clock = 0
    loop.train(batch(0, 4))
    assert loop.parts.client.pushes[0].clock == 0


def test_several_optimizers_share_one_push():
    loop = Loop(2)
    loop.train(batch(0, 4))
    assert loop.pushes == [(1, [(100, 0, 0, 4)])] and loop.parts.client.pushes[0].hyper == [("rates", 2)]


def test_optimizers_that_stepped_are_pushed_when_the_others_did_not():
    loop = Loop(2)
    loop.step.hand_out(batch(0, 4), None)
    loop.step.optimizers[1].step()
    assert loop.pushes == []
    loop.step.on_batch_done()
    assert loop.pushes == [(1, [(100, 0, 0, 4)])] and loop.parts.client.pushes[0].hyper == [("rates", 1)]


def test_step_before_the_first_batch_is_pushed():
    loop = Loop()
    loop.step.optimizers[0].step()
    assert loop.pushes == [(1, [])]


def test_second_step_of_one_optimizer_does_not_wait_for_the_other():
    loop = Loop(2)
    loop.step.hand_out(batch(0, 4), None)
    loop.step.optimizers[0].step()
    loop.step.optimizers[0].step()
    assert loop.pushes == [(1, [(100, 0, 0, 4)])] and loop.parts.client.pushes[0].hyper == [("rates", 1)]


def test_gradients_of_the_next_backward_are_put_back_after_the_push():
    loop = Loop(2)
    loop.step.hand_out(batch(0, 4), None)
    loop.backward()
    first, pushed = loop.parts.params[0], []
    loop.parts.dense.parts = lambda stepped: [pushed.append(first.grad.clone())]
    loop.step.optimizers[0].step()
    loop.step.optimizers[0].zero_grad()
    (first * 5).sum().backward()
    loop.step.optimizers[1].step()
    assert pushed[0].tolist() == [1, 1] and first.grad.tolist() == [5, 5]


# ---- several batches in a push ----


def test_sum_over_batches_is_one_push_with_all_identities():
    loop = Loop()
    loop.step.hand_out(batch(0, 4, last=False), None)
    loop.backward()
    loop.step.on_batch_done()
    loop.train(batch(8, 4))
    loop.step.rest()
    assert loop.pushes == [(1, [(100, 0, 0, 4), (100, 0, 8, 4)])]
    assert loop.parts.take("acknowledge", "step done") == [
        ("step done", 8),
        ("acknowledge", [claim(0, 4), claim(8, 4)]),
    ]


def test_step_in_the_middle_of_a_sum_is_refused():
    loop = Loop()
    loop.step.hand_out(batch(0, 4, last=False), None)
    with pytest.raises(errors.BadInput, match="in the middle of a sum"):
        loop.step.optimizers[0].step()


def test_adjacent_parts_of_a_batch_are_one_identity_and_one_claim():
    batches = PushBatches()
    for part in (batch(0, 4), batch(4, 2), batch(7, 1), batch(8, 1), batch(8, 2, shard=1)):
        batches.add(part)
    batches.add(batch(8, 2, shard=1))
    assert batches.ranges == [(100, 0, 0, 6), (100, 0, 7, 2), (100, 1, 8, 2), (100, 1, 8, 2)]
    assert batches.claims == [claim(0, 4), claim(4, 2), claim(7, 1), claim(8, 1), claim(8, 2, 1)]
    assert batches.samples == 12


def test_batch_without_a_lease_has_no_claim():
    batches = PushBatches()
    batches.add(batch(0, 4, claims=False))
    assert batches.claims == [] and batches.ranges == [(100, 0, 0, 4)]


def test_share_of_a_push_counts_no_borrowed_samples():
    batches = PushBatches()
    assert batches.share == 1.0
    batches.add(batch(0, 4, share=0.5))
    assert batches.share == 0.5
    batches.add(batch(8, 1, share=0.25, borrowed=True))
    assert batches.share == 4 / 12 and batches.samples == 5


# ---- batches without a step ----


def test_pause_pushes_batches_without_a_step_and_waits():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), None)
    loop.step.pause()
    (push,) = loop.parts.client.pushes
    assert push.batches == [(100, 0, 0, 4)] and push.parts == push.hyper == []
    assert loop.parts.take("update", "acknowledge") == [("acknowledge", [claim(0, 4)])]
    loop.step.pause()
    assert len(loop.pushes) == 1


def test_pause_pushes_an_optimizer_that_stepped_without_a_batch():
    loop = Loop(2)
    loop.train(batch(0, 4))
    loop.step.optimizers[0].step()
    loop.step.pause()
    assert loop.pushes[1:] == [(2, [])]


def test_batch_without_trainable_samples_is_pushed_alone():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), None)
    loop.step.skip(batch(4, 4))
    assert loop.pushes == [(1, [(100, 0, 4, 4)])] and loop.step.count == 1
    assert loop.parts.client.pushes[0].parts == []
    loop.train(batch(8, 4))
    assert loop.pushes[1:] == [(2, [(100, 0, 0, 4), (100, 0, 8, 4)])], "the loop's own batches are still open"
    assert loop.parts.take("wait", "acknowledge") == [("wait", 1), ("acknowledge", [claim(4, 4)])]


def test_push_before_a_skipped_batch_is_acknowledged():
    loop = Loop()
    loop.train(batch(0, 4))
    loop.step.skip(batch(4, 4))
    assert loop.parts.take("push", "acknowledge") == [("push", 1), ("acknowledge", [claim(0, 4)]), ("push", 2)]


def test_skipped_batch_is_pushed_alone_so_that_no_sum_is_torn():
    loop = Loop(watched=True)
    loop.step.hand_out(batch(0, 4), None)
    loop.step.on_batch_done()
    loop.train(batch(4, 4))
    assert loop.pushes == [(1, [(100, 0, 0, 4)]), (2, [(100, 0, 4, 4)])]


@pytest.mark.parametrize("options", [{"named": False, "watched": True}, {"watched": False}])
def test_skipped_batch_stays_open_without_identities_or_a_detector(options):
    loop = Loop(**options)
    loop.step.hand_out(batch(0, 4), None)
    loop.step.on_batch_done()
    assert loop.pushes == []


def test_batch_with_gradients_but_no_step_is_refused():
    loop = Loop(watched=True)
    loop.step.hand_out(batch(0, 4), None)
    loop.backward()
    with pytest.raises(errors.BadInput, match=r"did not call optimizer\.step"):
        loop.step.on_batch_done()
    loop.step.optimizers[0].zero_grad()
    loop.step.on_batch_done()
    assert loop.pushes == [(1, [(100, 0, 0, 4)])], "a batch whose gradients the loop has cleared is skipped"


def test_parts_of_a_sum_may_end_without_a_step():
    loop = Loop(watched=True)
    loop.step.hand_out(batch(0, 4, last=False), None)
    loop.backward()
    loop.step.on_batch_done()
    assert loop.pushes == []


def test_loop_that_received_no_batch_is_not_asked_for_a_step():
    loop = Loop(watched=True)
    loop.backward()
    loop.step.on_batch_done()
    assert loop.pushes == []


def test_gradients_that_were_pushed_are_not_refused_later():
    loop = Loop(watched=True)
    loop.train(batch(0, 4))
    loop.step.hand_out(batch(4, 4), None)
    loop.step.on_batch_done()
    assert len(loop.pushes) == 2


# ---- gradients that nothing steps on ----


def detector(*, tables, rows=()):
    parts = Recorder()
    parts.lookups.parts = list(rows)
    return UnsteppedGradients(parts.lookups, parts.params, tables=tables), parts.params[0]


def test_gradient_of_zeros_needs_no_step():
    unstepped, param = detector(tables=False)
    (param * 0).sum().backward()
    unstepped.refuse()
    param.sum().backward()
    with pytest.raises(errors.BadInput, match="accumulate=4"):
        unstepped.refuse()
    unstepped.clear()
    unstepped.refuse()


def test_sparse_gradient_needs_a_step():
    parts = Recorder()
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    unstepped = UnsteppedGradients(parts.lookups, [embedding.weight], tables=False)
    (embedding(torch.tensor([1])) * 0).sum().backward()
    unstepped.refuse()
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(errors.BadInput, match="did not call"):
        unstepped.refuse()


def test_model_with_tables_is_watched_by_its_rows_only():
    unstepped, param = detector(tables=True)
    param.sum().backward()
    unstepped.refuse()
    unstepped, _ = detector(tables=True, rows=[Rows()])
    with pytest.raises(errors.BadInput, match="did not call"):
        unstepped.refuse()


# ---- skipped steps ----


def scaled(optimizer, *, found_inf):
    optimizer.found_inf = torch.tensor(float(found_inf))
    optimizer.step()
    optimizer.found_inf = torch.tensor(0.0)


def test_overflow_skips_one_step_and_still_names_its_batch():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), None)
    scaled(loop.step.optimizers[0], found_inf=True)
    (push,) = loop.parts.client.pushes
    assert push.parts == push.hyper == [] and push.batches == [(100, 0, 0, 4)]
    assert loop.parts.take("update", "agree") == [("agree", 1.0, True, False)]
    loop.train(batch(4, 4))
    assert loop.parts.client.pushes[1].parts == ["dense"]


def test_overflow_of_either_optimizer_skips_the_common_step():
    for bad in range(2):
        loop = Loop(2)
        loop.step.hand_out(batch(0, 4), None)
        for number, optimizer in enumerate(loop.step.optimizers):
            scaled(optimizer, found_inf=number == bad)
        assert loop.parts.client.pushes[0].parts == []


def test_gradients_of_idle_tables_are_left_out():
    loop = Loop()
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    loop.parts.rates.idle = [weight]
    loop.train(batch(0, 4))
    assert weight.grad is None


def test_non_finite_gradient_of_a_table_names_the_table():
    loop = Loop()
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([float("nan"), 1.0])
    loop.step._gradients._named = [("table 'item'", weight)]
    loop.parts.lookups.parts = [Rows(), Rows(finite=False)]
    with pytest.raises(errors.NonFiniteGradient, match=r"the gradient of table 'item' has NaN or infinity in 1 of 2"):
        loop.train(batch(0, 4))


# ---- refused pushes ----


def test_listener_holds_every_lease_and_measures_age_by_steps_unless_it_says_otherwise():
    listener = StepListener()
    assert listener.on_torn([claim(0, 4)]) is False and listener.row_clock() is None


def test_push_of_a_batch_that_another_worker_holds_is_not_acknowledged(caplog):
    caplog.set_level("INFO")
    loop = Loop()
    loop.parts.listener.torn = True
    loop.parts.client.errors = [errors.PartlyApplied("server-1 has it")]
    loop.train(batch(0, 4))
    loop.step.rest()
    assert loop.parts.take("torn", "acknowledge", "trained") == [("torn", [claim(0, 4)])]
    assert "another worker holds now: server-1 has it" in caplog.text
    loop.train(batch(4, 4))
    loop.step.rest()
    assert loop.parts.take("acknowledge") == [("acknowledge", [claim(4, 4)])]


def test_push_that_servers_applied_in_part_fails_while_the_lease_is_held():
    loop = Loop()
    loop.parts.client.errors = [errors.PartlyApplied("server-1 has it")]
    loop.train(batch(0, 4))
    with pytest.raises(errors.PartlyApplied):
        loop.step.rest()


# ---- reading ahead ----


def test_rows_of_the_next_batch_are_requested_ahead_of_the_step():
    loop, first, second = Loop(), batch(0, 4), batch(4, 4)
    loop.parts.lookups.after_step = 7
    loop.step.hand_out(first, second)
    assert loop.parts.take() == [
        ("prefetch", "batch 0", 7),
        ("prefetch", "batch 4", None),
        ("begin", "rows of batch 0"),
        ("looked up", 1.0),
        "handed out",
    ]
    loop.step.hand_out(second, None)
    assert loop.parts.take("prefetch", "begin") == [("begin", "rows of batch 4")]
    loop.step.hand_out(second, None)
    assert loop.parts.take("prefetch") == [("prefetch", "batch 4", 7)], "rows that were used are requested anew"


def test_rows_of_an_unexpected_batch_are_requested():
    loop = Loop()
    loop.step.hand_out(batch(0, 4), batch(4, 4))
    loop.parts.take()
    loop.step.hand_out(batch(8, 4), None)
    assert loop.parts.take("prefetch", "begin") == [("prefetch", "batch 8", 0), ("begin", "rows of batch 8")]


@pytest.mark.parametrize("options", [{"served": False}, {"max_staleness": 3}])
def test_no_rows_are_read_ahead_in_this_process_or_under_a_bound(options):
    loop = Loop(**options)
    loop.step.hand_out(batch(0, 4), batch(4, 4))
    assert loop.parts.take("prefetch") == [("prefetch", "batch 0", 0)]


def test_dense_parameters_on_servers_fix_the_optimizers_groups():
    extra = {"params": [torch.zeros(1, requires_grad=True)]}
    with pytest.raises(errors.BadInput, match="parameter group was added"):
        Loop(served=True).step.optimizers[0].add_param_group(dict(extra))
    Loop(served=False).step.optimizers[0].add_param_group(dict(extra))


# ---- bound on staleness ----


def test_bounded_worker_reads_only_between_enter_and_leave():
    loop = Loop(max_staleness=2)
    loop.train(batch(0, 4))
    assert loop.parts.take("enter", "settle", "prefetch", "push", "wait", "leave") == [
        ("enter", 2),
        "settle",
        ("prefetch", "batch 0", 0),
        ("push", 1),
        ("wait", 1),
        "leave",
    ]


def test_bounded_worker_enters_once_for_a_sum_of_batches():
    loop = Loop(max_staleness=0)
    loop.step.hand_out(batch(0, 4, last=False), None)
    loop.step.hand_out(batch(4, 4), None)
    assert loop.parts.take("enter", "leave") == [("enter", 0)]
    loop.step.close_pass(early=True)
    assert loop.parts.take("leave") == ["leave"]
    loop.step.close_pass(early=True)
    assert loop.parts.take("leave") == []


def test_unbounded_worker_never_enters():
    loop = Loop()
    loop.train(batch(0, 4))
    loop.step.close_pass(early=False)
    assert loop.parts.take("enter", "leave") == []


# ---- ends of passes ----


def test_end_of_a_pass_pushes_open_batches_and_releases_leases():
    loop, following = Loop(), batch(4, 4)
    loop.step.hand_out(batch(0, 4), following)
    loop.parts.take()
    loop.step.close_pass(early=False)
    assert loop.pushes == [(1, [(100, 0, 0, 4)])]
    assert loop.parts.take("push", "wait", "settle", "release") == [("push", 1), ("wait", 1), "settle", "release"]
    loop.step.hand_out(following, None)
    assert loop.parts.take("prefetch") == [("prefetch", "batch 4", 0)], "rows of another pass are not used"


def test_pass_without_open_batches_ends_without_a_push():
    loop = Loop()
    loop.train(batch(0, 4))
    loop.step.close_pass(early=False)
    assert len(loop.pushes) == 1
    assert loop.parts.take("acknowledge") == [("acknowledge", [claim(0, 4)])]


def test_loop_that_breaks_leaves_its_current_batch_untrained():
    loop = Loop(watched=True)
    loop.step.hand_out(batch(0, 4), None)
    loop.backward()
    loop.step._skip = True
    loop.step.close_pass(early=True)
    assert loop.pushes == [] and loop.parts.params[0].grad is None
    assert loop.parts.take("clear rows") == ["clear rows"]
    loop.train(batch(4, 4))
    assert loop.parts.client.pushes[0].batches == [(100, 0, 4, 4)]
    assert loop.parts.client.pushes[0].parts == ["dense"], "an overflow of the dropped batch skips no other"


def test_loop_that_breaks_after_one_optimizers_step_trains_the_batch():
    loop = Loop(2, watched=True)
    loop.step.hand_out(batch(0, 4), None)
    loop.step.optimizers[0].step()
    loop.step.close_pass(early=True)
    assert loop.pushes == [(1, [(100, 0, 0, 4)])]


@pytest.mark.parametrize(("last", "watched", "kept"), [(True, False, True), (True, True, False), (False, False, False)])
def test_break_keeps_gradients_only_of_a_whole_batch_without_a_detector(last, watched, kept):
    loop = Loop(watched=watched)
    loop.step.hand_out(batch(0, 4, last=last), None)
    loop.backward()
    loop.step.close_pass(early=True)
    assert (loop.parts.params[0].grad is not None) is kept


# ---- batches that are trained already ----


def test_steps_on_a_repeated_batch_are_dropped():
    loop = Loop(watched=True)
    loop.step.hand_out(batch(0, 4, last=False), None)
    loop.step.hand_again("batch 0")
    assert loop.parts.take("learn") == [("learn", "batch 0")]
    loop.backward()
    loop.step.optimizers[0].step()
    assert loop.pushes == [] and not loop.step.optimizers[0]._waiting
    loop.step.take_again()
    assert loop.parts.params[0].grad is None and loop.parts.take("clear rows") == ["clear rows"]
    loop.train(batch(4, 4))
    assert len(loop.pushes) == 1


def test_step_alone_has_the_first_seat_and_nothing_to_do_for_a_group():
    loop = Loop()
    assert loop.step.seat == (0, 1) and loop.step.rates is loop.parts.rates
    assert [loop.step.regroup(3), loop.step.flush_now(), loop.step.retire()] == [None] * 3
    assert loop.parts.calls == []


def test_dlrms_optimizer_goes_on_with_the_sums_that_it_loads():
    loop = Recorder()
    loop.own = [RWSAdagrad(loop.params, lr=0.1)]
    saved = RWSAdagrad([torch.zeros(2)], lr=0.1).state_dict() | {"state": {0: {"sum": torch.ones(2)}}}
    AsyncStep(loop.context, loop.own, served=True, named=True)
    loop.own[0].load_state_dict(saved)
    assert loop.own[0].momentum_initialized
