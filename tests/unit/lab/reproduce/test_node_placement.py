"""Placement of data workers: within capacity, local where possible, and never worse after a move."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide_lab.reproduce.goldminer import node_placement
from springtide_lab.reproduce.goldminer.node_placement import Machine, PlacementRequest, Seat

NAMES = [f"m{place}" for place in range(4)]


@st.composite
def clusters(draw):
    machines = [
        Machine(name=name, cpu=float(draw(st.integers(0, 20))), distributed=draw(st.integers(0, 2))) for name in NAMES
    ]
    wants = [
        PlacementRequest(
            job=f"job-{place}",
            cpu=float(draw(st.integers(0, 25))),
            homes=tuple(draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=2))),
        )
        for place in range(draw(st.integers(0, 5)))
    ]
    seats = {
        (f"job-{draw(st.integers(0, 6))}", draw(st.sampled_from([*NAMES, "gone"]))): float(draw(st.integers(1, 20)))
        for _ in range(draw(st.integers(0, 8)))
    }
    return wants, machines, [Seat(job=job, machine=machine, cpu=cpu) for (job, machine), cpu in seats.items()]


@given(clusters())
def test_no_machine_exceeds_its_cores_and_no_job_its_request(case):
    wants, machines, now = case
    found = node_placement.place(wants, machines, now)
    for machine in machines:
        assert sum(seat.cpu for seat in found if seat.machine == machine.name) <= machine.cpu + 1e-6
    for want in wants:
        has = sum(seat.cpu for seat in found if seat.job == want.job)
        assert has <= want.cpu + 1e-6
    placed, wanted = sum(seat.cpu for seat in found), sum(want.cpu for want in wants)
    there = sum(machine.cpu for machine in machines)
    assert placed == pytest.approx(min(there, wanted)), "cores were left over while someone wanted some"


@given(clusters())
def test_job_is_placed_remotely_only_when_its_own_machines_are_full(case):
    wants, machines, now = case
    found = node_placement.place(wants, machines, now)
    for want in wants:
        away = any(seat.job == want.job and seat.machine not in want.homes for seat in found)
        for home in want.homes:
            used = sum(seat.cpu for seat in found if seat.machine == home)
            (cpu,) = [machine.cpu for machine in machines if machine.name == home]
            assert not away or used >= cpu - 1e-6


def local(seats, wants):
    homes = {want.job: want.homes for want in wants}
    return sum(seat.cpu for seat in seats if seat.machine in homes[seat.job])


@given(clusters())
def test_placing_again_moves_nothing_to_a_worse_machine(case):
    wants, machines, now = case
    once = node_placement.place(wants, machines, now)
    again = node_placement.place(wants, machines, once)
    assert local(again, wants) >= local(once, wants) - 1e-6
    assert sum(seat.cpu for seat in again) == pytest.approx(sum(seat.cpu for seat in once))


def test_local_cores_come_first_then_the_quietest_machine():
    machines = [
        Machine(name="home", cpu=4),
        Machine(name="loud", cpu=32, distributed=2),
        Machine(name="quiet", cpu=8),
    ]
    found = node_placement.place([PlacementRequest(job="a", cpu=14, homes=("home",))], machines)
    assert {seat.machine: seat.cpu for seat in found} == {"home": 4, "quiet": 8, "loud": 2}


def test_data_worker_moves_to_its_trainer_and_away_from_noisy_machines():
    machines = [Machine(name="home", cpu=6), Machine(name="loud", cpu=32, distributed=2), Machine(name="quiet", cpu=8)]
    want = PlacementRequest(job="a", cpu=8, homes=("home",))
    found = node_placement.place([want], machines, [Seat(job="a", machine="loud", cpu=8)])
    assert {seat.machine: seat.cpu for seat in found} == {"home": 6, "quiet": 2}


def test_data_worker_moving_home_makes_room_for_another():
    machines = [Machine(name=name, cpu=cpu) for name, cpu in (("m0", 1.0), ("m1", 1.0), ("m2", 2.0))]
    wants = [PlacementRequest(job="a", cpu=1, homes=("m1",)), PlacementRequest(job="b", cpu=1, homes=("m0",))]
    found = node_placement.place(wants, machines, [Seat(job="b", machine="m1", cpu=1)])
    assert {seat.job: seat.machine for seat in found} == {"a": "m1", "b": "m0"}


def test_remote_cores_on_the_noisiest_machine_are_released_first():
    machines = [Machine(name="home", cpu=4), Machine(name="loud", cpu=8, distributed=1), Machine(name="quiet", cpu=8)]
    now = [Seat(job="a", machine=name, cpu=4) for name in ("home", "loud", "quiet")]
    found = node_placement.place([PlacementRequest(job="a", cpu=8, homes=("home",))], machines, now)
    assert {seat.machine: seat.cpu for seat in found} == {"home": 4, "quiet": 4}
