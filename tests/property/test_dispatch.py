"""Random data worker histories: every step a trainer wants comes once and in order."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from springtide.dataworker.feed import dispatch
from springtide.dataworker.feed.dispatch import AssignStep, Dispatch, DropStep, ReleaseWorker, StepFate

PICK = st.integers(0, 1 << 16)


class Histories(RuleBasedStateMachine):
    """Workers join, leave, die, answer twice, late or never; the trainer wants and takes.

    The model is the least that can be said: each worker's orders as it got them, and answers that are under way.
    """

    def __init__(self):
        super().__init__()
        self.at = 0.0
        self.dispatch = Dispatch()
        self.workers: dict[str, list[int]] = {}  # what each has been told to make and has not answered
        self.dropped: dict[str, set[int]] = {}
        self.leaving: set[str] = set()
        self.names = 0
        self.late: list[tuple[str, int]] = []  # answers that may yet arrive, whoever has died meanwhile
        self.next_wanted = 0
        self.next_taken = 0
        self.failures: dict[int, int] = {}
        self.assigned: dict[int, int] = {}

    def carry_out(self, orders):
        for order in orders:
            if isinstance(order, AssignStep):
                assert order.worker in self.workers and order.worker not in self.leaving
                assert order.step not in self.workers[order.worker], "told twice"
                self.workers[order.worker].append(order.step)
                self.assigned[order.step] = self.assigned.get(order.step, 0) + 1
            elif isinstance(order, DropStep):
                assert order.step in self.workers[order.worker]
                self.dropped[order.worker].add(order.step)
            elif isinstance(order, ReleaseWorker):
                assert order.worker in self.leaving and not self.workers[order.worker]
                self.forget(order.worker)

    def forget(self, worker):
        del self.workers[worker], self.dropped[worker]
        self.leaving.discard(worker)

    def pick(self, number, options):
        return sorted(options)[number % len(options)]

    @rule(passes=st.floats(0, 5))
    def look(self, passes):
        self.at += passes
        self.carry_out(self.dispatch.poll(at=self.at))

    @rule()
    def join(self):
        if len(self.workers) < 4:
            worker, self.names = f"dw-{self.names}", self.names + 1
            self.workers[worker], self.dropped[worker] = [], set()
            self.carry_out(self.dispatch.joined(worker, at=self.at))

    @precondition(lambda self: self.workers)
    @rule(number=PICK)
    def leave(self, number):
        worker = self.pick(number, self.workers)
        self.leaving.add(worker)
        self.carry_out(self.dispatch.leaving(worker, at=self.at))

    @precondition(lambda self: self.workers)
    @rule(number=PICK, answers=st.booleans())
    def die(self, number, answers):
        worker = self.pick(number, self.workers)
        self.late += [(worker, step) for step in self.workers[worker]] if answers else []
        self.forget(worker)
        self.carry_out(self.dispatch.lost(worker, at=self.at))

    @precondition(lambda self: len(self.dispatch.steps) < 6)
    @rule(count=st.integers(1, 4))
    def want(self, count):
        for _ in range(min(count, 6 - len(self.dispatch.steps))):
            step, self.next_wanted = self.next_wanted, self.next_wanted + 1
            self.carry_out(self.dispatch.add_step(step, at=self.at))

    @precondition(lambda self: any(self.workers.values()))
    @rule(number=PICK, took=st.sampled_from([0.0, 0.01, 0.3, 8.0]), again=st.booleans(), first=st.booleans())
    def make(self, number, took, again, first):
        worker = self.pick(number, [name for name, steps in self.workers.items() if steps])
        step = self.workers[worker][0 if first else number % len(self.workers[worker])]
        self.at += took
        self.answer(worker, step)
        if again:
            self.late.append((worker, step))

    def answer(self, worker, step):
        self.workers[worker].remove(step)
        if step in self.dropped[worker]:
            self.dropped[worker].discard(step)
            self.carry_out(self.dispatch.dropped(worker, step, at=self.at))
        else:
            self.carry_out(self.dispatch.made(worker, step, at=self.at))

    @precondition(lambda self: self.late)
    @rule(number=PICK)
    def late_answer(self, number):
        worker, step = self.late.pop(number % len(self.late))
        if step not in self.workers.get(worker, ()):
            self.carry_out(self.dispatch.made(worker, step, at=self.at))

    @precondition(lambda self: any(self.workers.values()))
    @rule(number=PICK)
    def fail(self, number):
        worker = self.pick(number, [name for name, steps in self.workers.items() if steps])
        step = self.workers[worker].pop(0)
        news = self.dispatch.awaits(step)
        self.dropped[worker].discard(step)
        self.carry_out(self.dispatch.failed(worker, step, "boom", at=self.at))
        self.failures[step] = self.failures.get(step, 0) + news

    @precondition(lambda self: any(self.workers.values()))
    @rule(number=PICK)
    def let_go_unasked(self, number):
        worker = self.pick(number, [name for name, steps in self.workers.items() if steps])
        step = self.workers[worker].pop()
        self.dropped[worker].discard(step)
        self.carry_out(self.dispatch.dropped(worker, step, at=self.at))

    @rule()
    def take_in_order(self):
        step = self.dispatch.steps.get(self.next_taken)
        if step is None or step.fate is StepFate.WAITING:
            return
        if step.fate is StepFate.FAILED:
            assert self.failures.get(self.next_taken, 0) >= dispatch.TRIES or step.deaths >= dispatch.DEATHS
            assert step.why
        self.take()

    @precondition(lambda self: self.next_taken < self.next_wanted)
    @rule(number=PICK)
    def make_it_yourself(self, number):
        if number % 4 == 0:
            self.take()

    def take(self):
        self.carry_out(self.dispatch.remove_step(self.next_taken, at=self.at))
        self.next_taken += 1

    @invariant()
    def what_is_wanted_is_known_until_it_is_taken(self):
        assert list(self.dispatch.steps) == list(range(self.next_taken, self.next_wanted))

    @invariant()
    def both_sides_agree_on_what_is_under_way_and_it_is_bounded(self):
        told = {name: sorted(worker.steps) for name, worker in self.dispatch.workers.items()}
        assert told == {name: sorted(steps) for name, steps in self.workers.items()}
        assert all(len(steps) <= dispatch.AHEAD for steps in told.values())
        for number, step in self.dispatch.steps.items():
            assert sorted(step.holders) == sorted(n for n, steps in self.workers.items() if number in steps)
            assert len(step.holders) <= max(dispatch.HOLDERS, 1)

    @invariant()
    def a_step_waits_with_someone_or_to_be_given_out_and_is_not_tried_for_ever(self):
        for number, step in self.dispatch.steps.items():
            waits = step.fate is StepFate.WAITING
            assert waits == bool(step.holders or number in self.dispatch._pending) or step.holders
            assert not waits or self.failures.get(number, 0) < dispatch.TRIES

    @invariant()
    def nobody_rests_while_a_step_lies_about(self):
        resting = [name for name, steps in self.workers.items() if not steps and name not in self.leaving]
        for step in self.dispatch._pending:
            tried = {worker for worker, _ in self.dispatch.steps[step].failures}
            others = set(self.workers) - self.leaving - tried
            assert not set(resting) - tried and not (resting and not others), f"step {step} waits, {resting} rest"

    def teardown(self):
        """From any state, answering workers complete every step."""
        if not set(self.workers) - self.leaving:
            self.join() if len(self.workers) < 4 else self.leave_all()
        for _ in range(200):
            while (step := self.dispatch.steps.get(self.next_taken)) and step.fate is not StepFate.WAITING:
                self.take_in_order()
            if not self.dispatch.steps:
                return
            busy = [name for name, steps in self.workers.items() if steps]
            assert busy, f"nobody makes {list(self.dispatch.steps)}"
            self.answer(busy[0], self.workers[busy[0]][0])
        raise AssertionError(f"not home after 200 answers: {list(self.dispatch.steps)}")

    def leave_all(self):
        for worker in list(self.workers):
            while self.workers.get(worker):
                self.answer(worker, self.workers[worker][0])
        self.join()


TestHistories = Histories.TestCase
