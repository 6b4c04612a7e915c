"""Single dispatch decisions; whole histories are in tests/property/test_dispatch.py."""

from springtide.dataworker.feed import dispatch
from springtide.dataworker.feed.dispatch import AssignStep, Dispatch, DropStep, ReleaseWorker, StepFate


def with_workers(*names):
    book = Dispatch()
    for name in names:
        book.joined(name, at=0.0)
    return book


def want(book, *steps, at=0.0):
    return [order for step in steps for order in book.add_step(step, at=at)]


def test_steps_are_dispatched_round_robin_up_to_the_lead_limit():
    book = with_workers("a", "b")
    orders = want(book, *range(8))
    assert [order.worker for order in orders] == ["a", "b"] * dispatch.AHEAD


def test_answer_frees_a_place_at_its_worker():
    book = with_workers("a")
    want(book, *range(5))
    assert book.made("a", 0, at=1.0) == [AssignStep("a", 3)]
    assert book.steps[0].fate is StepFate.MADE


def test_steps_of_a_lost_worker_are_reassigned_before_later_ones():
    book = with_workers("a", "b")
    want(book, *range(8))
    assert book.lost("a", at=0.1) == []
    assert book.made("b", 1, at=0.2) == [AssignStep("b", 0)]
    assert book.made("b", 3, at=0.3) == [AssignStep("b", 2)]


def test_leaving_worker_gets_no_steps_and_is_released_after_its_last_answer():
    book = with_workers("a")
    want(book, 0, 1)
    assert book.leaving("a", at=0.0) == []
    assert want(book, 2) == []
    assert book.made("a", 0, at=1.0) == []
    assert book.made("a", 1, at=2.0) == [ReleaseWorker("a")]
    assert book.joined("b", at=2.0) == [AssignStep("b", 2)]


def test_second_answer_to_a_step_is_ignored():
    book = with_workers("a", "b")
    want(book, 0)
    book.lost("a", at=0.0)
    book.made("b", 0, at=1.0)
    assert not book.awaits(0)
    assert book.made("a", 0, at=2.0) == []
    book.remove_step(0, at=3.0)
    assert book.made("b", 0, at=4.0) == [] and not book.steps


def test_failed_step_is_tried_by_another_worker_then_reported():
    book = with_workers("a", "b")
    want(book, 0)
    assert book.failed("a", 0, "ValueError: row 7", at=0.1) == [AssignStep("b", 0)]
    assert book.failed("b", 0, "ValueError: row 7", at=0.2) == []
    assert book.steps[0].fate is StepFate.FAILED and book.steps[0].why == "ValueError: row 7"


def test_failed_step_waits_for_a_busy_worker_that_has_not_tried_it():
    book = with_workers("a", "b")
    want(book, *range(6))
    assert book.failed("a", 0, "x", at=0.1) == []
    assert book.made("b", 1, at=0.2) == [AssignStep("b", 0)]


def test_step_waiting_for_another_worker_delays_no_other_step():
    book = with_workers("a", "b")
    want(book, *range(7))
    assert book.failed("a", 0, "x", at=0.1) == [AssignStep("a", 6)]


def test_single_worker_retries_its_failed_step():
    book = with_workers("a")
    want(book, 0)
    assert book.failed("a", 0, "x", at=0.1) == [AssignStep("a", 0)]


def test_step_that_kills_workers_is_finally_reported():
    book = with_workers()
    want(book, 0, 1)
    for number in range(dispatch.DEATHS):
        book.joined(f"w{number}", at=0.0)
        book.lost(f"w{number}", at=0.0)
    assert book.steps[0].fate is StepFate.FAILED and "died" in book.steps[0].why
    assert book.steps[1].fate is StepFate.WAITING  # it was never in the making


def test_repeated_deaths_fail_a_step_that_a_hanging_worker_also_has():
    book = with_workers("hangs")
    want(book, 0)
    for number in range(dispatch.DEATHS):
        assert book.joined(f"w{number}", at=100.0) == [AssignStep(f"w{number}", 0)]
        last = book.lost(f"w{number}", at=100.0)
    assert book.steps[0].fate is StepFate.FAILED and last == [DropStep("hangs", 0)]


def test_idle_worker_repeats_a_slow_workers_step_and_the_first_answer_wins():
    book = with_workers("slow", "quick")
    want(book, 0, 1)
    book.made("quick", 1, at=0.1)
    assert book.poll(at=0.12) == []  # not overdue yet
    assert book.poll(at=0.5) == [AssignStep("quick", 0)]
    assert book.made("quick", 0, at=0.6) == [DropStep("slow", 0)]
    book.remove_step(0, at=0.6)
    assert book.dropped("slow", 0, at=5.0) == []
    assert book.workers["slow"].mean_s == 5.0


def test_known_slow_worker_gets_one_step_at_a_time():
    book = with_workers("slow", "quick")
    want(book, 0, 1)
    book.made("quick", 1, at=0.1)
    book.made("slow", 0, at=5.0)
    orders = want(book, *range(2, 8), at=5.0)
    assert sum(order.worker == "slow" for order in orders) == 1
    assert sum(order.worker == "quick" for order in orders) == dispatch.AHEAD


def test_equal_workers_do_not_repeat_each_others_steps():
    book = with_workers("a", "b")
    want(book, 0, 1)
    book.made("a", 0, at=1.0)
    assert [order for at in (1.1, 1.5, 2.0, 2.4) for order in book.poll(at=at)] == []


def test_unanswered_and_unassigned_steps_become_overdue():
    book = with_workers("a")
    want(book, *range(5))
    book.made("a", 0, at=1.0)
    late = 1.0 + dispatch.PATIENCE_S
    assert not book.overdue(1, at=late) and not book.overdue(4, at=late)
    assert book.overdue(1, at=late + 6) and book.overdue(4, at=late + 6)
    assert not book.overdue(0, at=late + 6)
    book.joined("b", at=late + 6)
    assert not book.overdue(4, at=late + 6)


def test_step_whose_worker_died_has_a_longer_timeout():
    book = with_workers("a", "b")
    want(book, 0)
    book.lost("a", at=0.0)
    late = dispatch.PATIENCE_S + 10
    assert not book.overdue(0, at=late) and book.overdue(0, at=6 * late)


def test_lead_limit_follows_workers_and_memory():
    def room(workers, batch_bytes):
        return dispatch.fitting_room(8, workers=workers, most_bytes=1000, batch_bytes=batch_bytes)

    assert room(2, None) == 2
    assert room(2, 10) == 8
    assert room(16, 10) == 32
    assert room(16, 100) == 10
    assert room(16, 5000) == 1
