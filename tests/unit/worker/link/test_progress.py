import pytest

from springtide.domain.plan import profile
from springtide.worker.link.progress import ClientTime, StepMeter, StepTerms, exposed


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def one_step(meter, clock):
    clock.now += 1.0
    meter.data_read(0.75)
    meter.looked_up(0.25)
    meter.handed_out()
    clock.now += 5.0
    meter.waited += 2.0
    meter.forward_done()
    clock.now += 4.0
    meter.step_began()
    clock.now += 3.0
    meter.waited += 1.5
    meter.step_done(samples=8)


def metered():
    clock = Clock()
    meter = StepMeter(
        clock,
        lambda: ClientTime(lookup_s=clock.now, update_s=clock.now / 4, synchronization_s=1, wait_s=meter.waited),
    )
    meter.waited = 0.0
    meter.restart()
    return meter, clock


def test_step_terms_add_up_to_the_whole_step():
    meter, clock = metered()
    one_step(meter, clock)
    (step,) = meter.steps
    assert (step.pull_wait_s, step.forward_s, step.backward_s, step.push_wait_s) == (2, 3, 4, 1.5)
    in_step = 1.5
    assert step.total_s == pytest.approx(step.data_s + 0.25 + 2 + 3 + 4 + 1.5 + in_step) == 13
    assert step.gradient_s == 3 + 4 + in_step + 0.25


def test_server_time_of_a_step_is_the_time_the_worker_waited():
    meter, clock = metered()
    one_step(meter, clock)
    (step,) = meter.steps
    waited, servers = 2 + 1.5, 13 + 13 / 4
    assert step.lookup_s == pytest.approx(13 * waited / servers)
    assert step.update_s == pytest.approx(13 / 4 * waited / servers)
    assert step.synchronization_s == pytest.approx(0)


def test_hidden_server_time_is_in_no_term_and_idle_waiting_is_synchronization():
    hidden = exposed(ClientTime(), ClientTime(lookup_s=5, update_s=3, synchronization_s=2), own_s=7)
    assert hidden == StepTerms(gradient_s=7)
    blocked = exposed(ClientTime(), ClientTime(lookup_s=1, update_s=1, synchronization_s=2, wait_s=10), own_s=7)
    assert blocked == StepTerms(gradient_s=7, update_s=1, lookup_s=1, synchronization_s=8)


def test_local_tables_report_lookup_and_update_terms():
    clock = Clock()
    meter = StepMeter(clock)
    meter.waited = 0.0
    one_step(meter, clock)
    (step,) = meter.steps
    assert (step.gradient_s, step.update_s, step.lookup_s, step.synchronization_s) == (9, 3, 0.25, 0)


def test_step_sums_continue_and_each_step_counts_once():
    meter, clock = metered()
    one_step(meter, clock)
    assert meter.collect().steps == 1
    one_step(meter, clock)
    assert meter.collect() == profile.summed(meter.steps)
    assert meter.collect().samples == 16


def test_time_between_passes_belongs_to_no_step():
    meter, clock = metered()
    one_step(meter, clock)
    clock.now += 100
    meter.restart()
    one_step(meter, clock)
    assert meter.collect().total_s == 26
