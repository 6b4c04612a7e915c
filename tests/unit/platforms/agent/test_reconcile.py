"""Reconcile running roles with the wanted ones."""

from hypothesis import given
from hypothesis import strategies as st

from springtide.domain.core.roles import Life, Role, RoleKind, WantedRole
from springtide.platforms.agent.reconcile import POLITE_S, LostRole, Reconciler, ResizeRole, StartRole, StopRole


def worker(rank, incarnation=0, after_s=0.0):
    return WantedRole(role=Role(RoleKind.WORKER, rank), incarnation=incarnation, after_s=after_s)


def life(rank, incarnation=0):
    return Life(Role(RoleKind.WORKER, rank), incarnation)


def test_missing_wanted_role_is_started_once():
    reconciler = Reconciler()
    assert reconciler.steps([worker(0), worker(1)], [], at=0.0) == [StartRole(worker(0)), StartRole(worker(1))]
    assert reconciler.steps([worker(0), worker(1)], [life(0), life(1)], at=0.1) == []


def test_changed_limits_resize_the_running_process_once():
    reconciler, more = Reconciler(), WantedRole(role=Role(RoleKind.WORKER, 0), cpu=2.0)
    reconciler.steps([worker(0)], [], at=0.0)
    assert reconciler.steps([worker(0)], [life(0)], at=0.1) == []
    assert reconciler.steps([more], [life(0)], at=0.2) == [ResizeRole(more)]
    assert reconciler.steps([more], [life(0)], at=0.3) == []


def test_ended_incarnation_is_not_restarted_but_the_next_is():
    reconciler = Reconciler()
    reconciler.steps([worker(0)], [], at=0.0)
    assert reconciler.steps([worker(0)], [], at=1.0) == []
    assert reconciler.steps([worker(0, 1)], [], at=1.1) == [StartRole(worker(0, 1))]
    assert reconciler.steps([worker(0)], [life(0, 1)], at=1.2) == [
        StopRole(life(0, 1), kill=False, why="incarnation 0 replaces it")
    ], "a master that wants an older life gets none started"


def test_relaunch_delay_counts_from_its_first_sighting():
    reconciler = Reconciler()
    later = worker(0, 1, after_s=2.0)
    assert reconciler.steps([later], [], at=10.0) == []
    assert reconciler.steps([later], [], at=11.9) == []
    assert reconciler.steps([later], [], at=12.0) == [StartRole(later)]


def test_unwanted_role_is_asked_to_end_and_then_killed():
    reconciler = Reconciler()
    assert reconciler.steps([], [life(0)], at=0.0) == [StopRole(life(0), kill=False, why="it is no longer wanted")]
    assert reconciler.steps([], [life(0)], at=POLITE_S - 0.1) == []
    assert reconciler.steps([], [life(0)], at=POLITE_S) == [StopRole(life(0), kill=True, why="it is no longer wanted")]


def test_next_server_incarnation_waits_until_the_previous_is_dead():
    """They would share memory with the same workers."""
    reconciler, role = Reconciler(), Role(RoleKind.SERVER, 1)
    reconciler.steps([WantedRole(role=role)], [], at=0.0)
    again, hung = WantedRole(role=role, incarnation=1), Life(role, 0)
    end = StopRole(hung, kill=True, why="incarnation 1 replaces it")
    assert reconciler.steps([again], [hung], at=1.0) == [end]
    assert reconciler.steps([again], [hung], at=1.1) == [end]
    assert reconciler.steps([again], [], at=1.2) == [StartRole(again)]


def test_next_incarnation_does_not_wait_for_a_zombie():
    reconciler = Reconciler()
    reconciler.steps([worker(0)], [], at=0.0)
    steps = reconciler.steps([worker(0, 1)], [life(0)], at=1.0)
    assert steps == [StopRole(life(0), kill=False, why="incarnation 1 replaces it"), StartRole(worker(0, 1))]
    assert reconciler.steps([worker(0, 1)], [life(0), life(0, 1)], at=1.1) == []


def joined(rank, incarnation=0):
    return WantedRole(role=Role(RoleKind.WORKER, rank), incarnation=incarnation, joined=True)


def test_successor_agent_keeps_running_roles_and_reports_lost_ones():
    reconciler = Reconciler()
    wanted = [joined(0), worker(1), joined(2), worker(3)]
    steps = reconciler.steps(wanted, [life(0), life(1)], at=0.0)
    assert steps == [LostRole(life(2)), StartRole(worker(3))]
    assert reconciler.steps(wanted, [life(0), life(1), life(3)], at=0.1) == [], "each is said once"


def test_role_started_here_is_not_reported_lost_by_the_reconciler():
    reconciler = Reconciler()
    reconciler.steps([worker(0)], [], at=0.0)
    assert reconciler.steps([joined(0)], [], at=1.0) == []


def test_next_incarnation_starts_normally_after_a_takeover():
    reconciler = Reconciler()
    assert reconciler.steps([joined(0, 3)], [], at=0.0) == [LostRole(life(0, 3))]
    assert reconciler.steps([worker(0, 4)], [], at=0.1) == [StartRole(worker(0, 4))]


@given(st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 5)))
def test_takeover_leaves_each_wanted_role_running_started_or_lost(wanted, called_in, running):
    roles = [joined(rank) if rank in called_in else worker(rank) for rank in sorted(wanted)]
    steps = Reconciler().steps(roles, [life(rank) for rank in sorted(running)], at=0.0)
    started = {step.wanted.role.rank for step in steps if isinstance(step, StartRole)}
    lost = {step.life.role.rank for step in steps if isinstance(step, LostRole)}
    ended = {step.life.role.rank for step in steps if isinstance(step, StopRole)}
    assert started == wanted - running - called_in
    assert lost == (wanted - running) & called_in
    assert ended == running - wanted


looks = st.lists(
    st.tuples(
        st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.5])), max_size=3),
        st.sets(st.integers(0, 20), max_size=2),
    ),
    max_size=30,
)


@given(looks)
def test_no_incarnation_starts_twice_and_wanted_roles_are_not_stopped(history):
    reconciler, running, started = Reconciler(), [], []
    for at, (wanted, deaths) in enumerate(history):
        running = [each for number, each in enumerate(running) if number not in deaths]
        roles = [worker(rank, incarnation, after_s) for rank, (incarnation, after_s) in wanted.items()]
        lives = {Life(each.role, each.incarnation) for each in roles}
        for step in reconciler.steps(roles, running, at=float(at)):
            if isinstance(step, StartRole):
                started.append(Life(step.wanted.role, step.wanted.incarnation))
                running.append(started[-1])
            else:
                assert step.life not in lives
                if step.kill:
                    running.remove(step.life)
    assert len(set(started)) == len(started)
    for rank in range(3):
        of_rank = [each.incarnation for each in started if each.role.rank == rank]
        assert of_rank == sorted(of_rank)
