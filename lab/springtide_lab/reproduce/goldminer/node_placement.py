"""Place data workers on machines: next to their trainers if possible, otherwise where the network is quiet.

In: the cores granted to each job (`allocation.allot`), free cores of machines, and the current seats. Out: the next
seats (a seat is some cores of one job on one machine).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Resources of one machine for data workers."""

    name: str
    cpu: float
    """Number of cores that neither trainers nor other processes use. Current data workers may run on these cores."""
    distributed: int = 0
    """Jobs that train on this machine and also on other machines. The gradients of these jobs use the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """Cores that one job needs for data workers, and the machines of its trainers."""

    job: str
    cpu: float
    homes: tuple[str, ...] = ()
    """Machines of the job's trainers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Cores that one job has on one machine."""

    job: str
    machine: str
    cpu: float


def place(wants: Sequence[PlacementRequest], machines: Sequence[Machine], now: Sequence[Seat] = ()) -> tuple[Seat, ...]:
    """Place all requests. The order is: keep seats next to trainers, keep remote seats, grow locally, grow remotely.

    Finally, remote seats move to a trainer's machine or a quieter machine that has got room.
    """
    table = _Table(wants, machines)
    for local in (True, False):
        kept = [seat for seat in now if seat.job in table.homes and seat.machine in table.free]
        kept.sort(key=lambda seat: (table.noise(seat.machine, seat.job), seat.machine))
        for seat in kept:
            if (seat.machine in table.homes[seat.job]) is local:
                table.take(seat.job, seat.machine, seat.cpu)
    for want in wants:
        for name in want.homes:
            if name in table.free:
                table.take(want.job, name, math.inf)
    for want in wants:
        while table.wanted[want.job] > ROUNDING:
            open_ones = [name for name, room in table.free.items() if room > ROUNDING]
            if not open_ones:
                break
            table.take(want.job, min(open_ones, key=lambda name: table.order(name, want.job)), math.inf)
    _improve(table, wants)
    return tuple(Seat(job=job, machine=machine, cpu=cpu) for (job, machine), cpu in sorted(table.cpu.items()))


class _Table:
    """Allocation state during placement: cores per job and machine, free cores, and outstanding requests."""

    def __init__(self, wants: Sequence[PlacementRequest], machines: Sequence[Machine]) -> None:
        self.homes = {want.job: frozenset(want.homes) for want in wants}
        self.wanted = {want.job: want.cpu for want in wants}
        self.free = {machine.name: max(machine.cpu, 0.0) for machine in machines}
        self.distributed = {machine.name: machine.distributed for machine in machines}
        self.cpu: dict[tuple[str, str], float] = {}
        self.guests = dict.fromkeys(self.free, 0)

    def take(self, job: str, machine: str, most: float) -> None:
        """Take as many cores as the job wants, the machine has, and `most` allows."""
        cpu = min(self.wanted[job], self.free[machine], most)
        if cpu > ROUNDING:
            self.guests[machine] += self.guest(job, machine) and (job, machine) not in self.cpu
            self.cpu[job, machine] = self.cpu.get((job, machine), 0.0) + cpu
            self.wanted[job] -= cpu
            self.free[machine] -= cpu

    def give(self, job: str, machine: str, cpu: float) -> None:
        left = self.cpu[job, machine] - cpu
        if left > ROUNDING:
            self.cpu[job, machine] = left
        else:
            del self.cpu[job, machine]
            self.guests[machine] -= self.guest(job, machine)
        self.wanted[job] += cpu
        self.free[machine] += cpu

    def noise(self, machine: str, job: str) -> int:
        """Return the number of other network users: distributed jobs, and remote data workers of other jobs."""
        itself = self.guest(job, machine) and (job, machine) in self.cpu
        return self.distributed[machine] + self.guests[machine] - itself

    def guest(self, job: str, machine: str) -> bool:
        return machine not in self.homes[job]

    def order(self, machine: str, job: str) -> tuple[int, float, str]:
        """Return a sort key: quietest machine first, then the most room."""
        return self.noise(machine, job), -self.free[machine], machine


def _improve(table: _Table, wants: Sequence[PlacementRequest]) -> None:
    """Move remote cores to a trainer's machine or to a quieter machine, never the other way."""
    _go_home(table, wants)
    if _go_where_it_is_quieter(table, wants):
        _go_home(table, wants)


def _go_home(table: _Table, wants: Sequence[PlacementRequest]) -> None:
    """Move cores of data workers to machines with trainers of their job, until no more moves are possible. Each move
    can free room on another job's machine. Local cores only grow, so the loop ends.
    """
    moved = True
    while moved:
        moved = False
        for want, machine in _away(table, wants):
            for better in [name for name in want.homes if table.free.get(name, 0.0) > ROUNDING]:
                moved |= _move(table, want.job, machine, better, table.free[better])


def _go_where_it_is_quieter(table: _Table, wants: Sequence[PlacementRequest]) -> bool:
    """Move whole seats once, from machines with network users to quieter machines."""
    moved = False
    for want, machine in _away(table, wants):
        noise = table.noise(machine, want.job)
        whole = table.cpu[want.job, machine]
        quieter = [
            name
            for name, room in table.free.items()
            if noise and room >= whole - ROUNDING and table.noise(name, want.job) < noise
        ]
        if quieter:
            better = min(quieter, key=lambda name: table.order(name, want.job))
            moved |= _move(table, want.job, machine, better, whole)
    return moved


def _away(table: _Table, wants: Sequence[PlacementRequest]) -> list[tuple[PlacementRequest, str]]:
    """Return the remote seats in job order; in each job, those on the noisiest machine come first."""
    away: dict[str, list[str]] = {}
    for job, machine in table.cpu:
        if table.guest(job, machine):
            away.setdefault(job, []).append(machine)
    return [
        (want, machine)
        for want in wants
        for machine in sorted(away.get(want.job, ()), key=lambda name: table.order(name, want.job), reverse=True)
    ]


def _move(table: _Table, job: str, machine: str, better: str, most: float) -> bool:
    cpu = min(table.cpu.get((job, machine), 0.0), most)
    if cpu <= ROUNDING:
        return False
    table.give(job, machine, cpu)
    table.take(job, better, cpu)
    return True
