"""How many tables may be scored within a time."""

from springtide.embedding.schedule import budget


def schedules(tables, *, each_ms=0.1, base_ms=0.0, rest_ms=2.0, count=10):
    allocate = (base_ms + each_ms * tables) / 1e3
    return [budget.ScheduleTime(units=tables, allocate_s=allocate, rest_s=rest_ms / 1e3)] * count


def within(budget_ms, history, tables=26):
    return budget.units_within(budget_ms / 1e3, history, most=tables, least=min(tables, budget.LEAST))


def test_all_tables_are_scored_where_there_is_time():
    assert within(100, schedules(26)) == 26


def test_the_first_schedule_scores_all_tables():
    assert within(0.001, []) == 26


def test_what_the_plan_leaves_is_shared_out_over_tables():
    assert within(3.0, schedules(26)) == 7  # 2.7 ms without the margin, 0.7 ms beside the plan, 0.1 ms a table


def test_where_the_plan_takes_it_all_the_best_few_are_scored_all_the_same():
    assert within(2.0, schedules(26)) == budget.LEAST
    assert within(2.0, schedules(2, count=3), tables=2) == 2


def test_time_that_every_allocation_takes_is_learned_from_two_sizes():
    seen = schedules(26, base_ms=0.5) + schedules(7, base_ms=0.5)
    assert within(3.5, seen) == 6


def test_a_budget_that_grows_brings_tables_back():
    assert within(10.0, schedules(3)) == 26


def test_old_schedules_are_forgotten():
    assert within(3.0, schedules(26, rest_ms=50, count=100) + schedules(26, count=budget.MEMORY)) == 7


def test_following_its_own_advice_it_stays_inside_and_settles():
    history, chosen = [], []
    for _ in range(60):
        tables = within(3.0, history)
        history += schedules(tables, base_ms=0.3, count=1)
        chosen.append(tables)
    assert all(each.allocate_s + each.rest_s <= 0.003 for each in history[10:])
    assert chosen[-1] == chosen[-10] and chosen[-1] >= 3


def test_stages_of_a_schedule_are_told_apart():
    seen = budget.took({"read": 1.0, "allocate": 2.0, "plan": 3.0}, units=4)
    assert seen == budget.ScheduleTime(units=4, allocate_s=2.0, rest_s=4.0)
