from springtide.domain.plan import profile


def step(**values):
    return profile.StepTiming(**{name: 0 for name in profile.STEP_FIELDS} | values)


def test_step_sums_add_up_and_give_rates():
    total = profile.summed([step(samples=512, total_s=1.0, pull_wait_s=0.25), step(samples=512, total_s=1.0)])
    assert (total.steps, total.samples, total.samples_per_s, total.wait_share) == (2, 1024, 512.0, 0.125)
    assert (total + total).steps == 4


def test_rate_without_steps_is_zero():
    assert profile.summed([]) == profile.TimingSum()
    assert profile.TimingSum().samples_per_s == 0.0
