"""Random histories of slots that move while servers and masters die. Compares the true owners with those that the
master knows.

The master is the real `Rollout` over the real record. Servers are simulated, with gates, a handover thread, frames on
the wire and messages to the master. A slot's copy is a number that rises with every push. When a gate opens over a
copy, the copy must be the newest that the slot ever had. A copy from a checkpoint may be older: then the ledger rolls
back, and the missing batches are trained again. `RULES` can be dropped one by one, to show that each is needed.
"""

import itertools
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

from springtide.domain.core.roles import Role, RoleExit, RoleKind
from springtide.domain.spec.job_spec import JobSpec
from springtide.job.core import events
from springtide.job.rollcall import RollCall
from springtide.master.core.context import ChangeSignal
from springtide.master.core.record import JobRecord
from springtide.master.servers.migration import SlotMigration
from springtide.rpc.messages.types import SlotGoal, SlotHoldings, SlotsMoved
from springtide.server import slot_loads

RULES = {
    "call": "a next life is told its slots only after all living servers have said what they have",
    "stop": "what they say counts only when all have stopped handing over",
    "turn": "a server that was called takes no slot over a connection from before",
    "heir": "what no living server has comes back with the next life, though a living one was thought to have it",
    "let go": "a copy in doubt is given up when the slot is another's, by its own word or by a roll call",
    "once": "what was offered twice is taken once, though it was given on meanwhile",
}
SERVERS = 3
SLOTS = (0, 13, 30, 45, 63)
"""The slots that matter here, of 64."""
FAULTS_UNTIL, STEPS = 400, 4000


@dataclass(eq=False)
class Frame:
    """An `own` frame in transit to a target, over a connection of this `turn` of the target."""

    slot: int
    copy: int
    source: "Life"
    target: "Life"
    turn: int
    gift: int
    """The same for each time that it is offered."""
    open: bool = True
    """Whether the source still listens for the answer."""


@dataclass(eq=False)
class Life:
    """One server process."""

    rank: int
    incarnation: int
    alive: bool = True
    placed: bool = False
    copies: dict[int, int] = field(default_factory=dict)
    gates: set[int] = field(default_factory=set)
    doubts: dict[int, int] = field(default_factory=dict)
    gifts: dict[int, int] = field(default_factory=dict)
    """By slot: the last gift of it."""
    settled: dict[int, bool] = field(default_factory=dict)
    """Gifts of others, and whether they were taken."""
    turn: int = 0
    call: int = 0
    goal: SlotGoal | None = None
    taken: SlotGoal | None = None
    giving: Frame | None = None
    told: SlotsMoved | None = None
    """Waits for the master's answer."""
    words: list[object] = field(default_factory=list)
    """On their way to the master, in order."""

    @property
    def role(self) -> Role:
        return Role(RoleKind.SERVER, self.rank)


class World:
    """The whole system. `run()` returns the violations, or an empty list."""

    def __init__(self, seed: int, *, dropped: str = "") -> None:
        assert not dropped or dropped in RULES
        self.chance, self.dropped, self.wrong = random.Random(seed), dropped, []
        self.record = JobRecord(
            JobSpec(name="moves", servers=SERVERS, workers=1, slots=64, relaunches=10**6, backoff_s=0)
        )
        self.term = 1
        self.rollout = self.master()
        self.lives = {rank: Life(rank, 0) for rank in range(SERVERS)}
        self.ports, self.names = itertools.count(), itertools.count()
        self.life_at: dict[str, Life] = {}
        self.frames: list[Frame] = []
        self.news: list[Life] = []
        self.truth = dict.fromkeys(SLOTS, 0)
        self.step = 0
        self.happen(events.RoleJoined(Role(RoleKind.WORKER, 0)))
        for life in self.lives.values():
            self.happen(events.RoleJoined(life.role))
            self.ready(life)
        self.happen(events.CheckpointSaved(1))
        for life in self.lives.values():
            life.placed = True
            self.open_all(life, [slot for slot in SLOTS if self.record.slots.owners[slot] == life.rank])

    def master(self) -> SlotMigration:
        """Return the master of this term."""
        doors = SimpleNamespace(
            record=self.record,
            journaled=lambda change, *arguments: change(*arguments),
            log_event=lambda kind, **fields: None,
            apply=self.happen,
            term=self.term,
            changed=ChangeSignal(),
        )
        return SlotMigration(doors)

    def happen(self, event: events.JobEvent) -> None:
        self.record.apply(event, 0.0)

    def ready(self, life: Life) -> None:
        address = f"host:{next(self.ports)}"
        self.life_at[address] = life
        self.happen(events.RoleReady(life.role, address, life.incarnation))

    # ---- a run ----

    def run(self) -> list[str]:
        """Inject faults for a while, then none until every slot has its owner."""
        for self.step in range(STEPS):
            if self.wrong or (not self.faulty and self.at_rest):
                break
            getattr(self, self.chance.choice(self.moves()))()
            self.check()
        if not self.wrong and not self.at_rest:
            known = [self.record.slots.owners[slot] for slot in SLOTS]
            self.wrong.append(f"stuck: {self.owners()}, record {known}, {list(self.lives.values())}")
        return self.wrong

    @property
    def faulty(self) -> bool:
        return self.step < FAULTS_UNTIL

    def moves(self) -> list[str]:
        moves = ["push"] * 2 + ["hand"] * 8 + ["deliver"] * 4 + ["speak"] * 4 + ["beat"] * 3 + ["welcome"] * 2
        if self.faulty:
            faults = ["kill", "replace_master", "aim", "break_off", "idle"]
            moves += self.chance.choices(faults, weights=[3, 1, 10, 4, 20], k=3)
        return [*moves, "learn_of_death"]

    @property
    def at_rest(self) -> bool:
        owners = self.owners()
        return (
            not self.news
            and not self.record.state.healing
            and all(life.placed and not life.told and not life.giving for life in self.lives.values())
            and all(owners[slot] == [self.record.slots.owners[slot]] for slot in SLOTS)
        )

    def owners(self) -> dict[int, list[int]]:
        return {
            slot: [life.rank for life in self.lives.values() if life.alive and slot in life.gates] for slot in SLOTS
        }

    def check(self) -> None:
        for slot, found in self.owners().items():
            if len(found) > 1:
                self.wrong.append(f"slot {slot} has the owners {found}")

    def open(self, life: Life, slot: int) -> None:
        """Open a gate; its copy must be the newest."""
        life.gates.add(slot)
        if life.copies[slot] != self.truth[slot]:
            self.wrong.append(f"slot {slot} is opened on server-{life.rank} as it was before")

    def open_all(self, life: Life, slots: list[int]) -> None:
        """Restore slots from a checkpoint; missing batches are trained again."""
        for slot in slots:
            life.copies[slot] = self.truth[slot]
            life.gates.add(slot)

    def some(self, *, placed: bool = True) -> Life | None:
        able = [life for life in self.lives.values() if life.alive and life.placed is placed]
        return self.chance.choice(able) if able else None

    # ---- what happens ----

    def idle(self) -> None:
        """Nothing."""

    def push(self) -> None:
        """Let a worker train a slot at its owners."""
        slot = self.chance.choice(SLOTS)
        for rank in self.owners()[slot]:
            self.lives[rank].copies[slot] += 1
            self.truth[slot] = self.lives[rank].copies[slot]

    def aim(self) -> None:
        """Let the master give slots to other servers."""
        if not self.record.state.healing:
            slots = self.chance.sample(SLOTS, self.chance.randint(1, 3))
            goal = {slot: self.chance.randrange(SERVERS) for slot in slots}
            self.rollout._goal = {slot: to for slot, to in goal.items() if self.record.slots.owners[slot] != to}
            self.rollout.calling.moves = True

    def kill(self) -> None:
        life = self.chance.choice(list(self.lives.values()))
        if life.alive:
            life.alive = False
            self.news.append(life)
            if self.chance.random() < 0.5:
                life.words.clear()

    def learn_of_death(self) -> None:
        """The agent reports a death to the master; the next life starts and joins."""
        if not self.news or self.chance.random() < 0.5:
            return
        dead = self.news.pop(self.chance.randrange(len(self.news)))
        while dead.words and self.chance.random() < 0.7:
            self.say(dead, dead.words.pop(0))
        ended = RoleExit(role=dead.role, pid=1, signal="SIGKILL", incarnation=dead.incarnation)
        self.happen(events.RoleExited(ended))
        self.lives[dead.rank] = Life(dead.rank, dead.incarnation + 1)
        self.happen(events.RoleJoined(dead.role, dead.incarnation + 1, pid=dead.incarnation + 2))

    def replace_master(self) -> None:
        """Start a new master. Messages in transit are sent again, and heartbeats are built again."""
        self.term += 1
        goal = self.rollout._goal
        self.rollout = self.master()
        self.rollout._goal = dict(goal) if self.chance.random() < 0.5 else {}
        for life in self.lives.values():
            life.words = [word for word in life.words if isinstance(word, SlotsMoved)]

    def welcome(self) -> None:
        """The next incarnation learns its slots, restores them and serves."""
        life = self.some(placed=False)
        if life is None or not (self.dropped == "call" or self.rollout.calling.known()):
            return
        if self.dropped not in ("call", "heir"):
            self.rollout.settle(life.role)
        self.open_all(life, [slot for slot in SLOTS if self.record.slots.owners[slot] == life.rank])
        self.ready(life)
        life.placed = True

    # ---- words to the master ----

    def beat(self) -> None:
        life = self.some()
        if life is not None and None not in life.words:
            life.words.append(None)

    def speak(self) -> None:
        """Deliver the next message of a server to the master, and the reply."""
        life = self.some()
        if life is not None and life.words:
            self.say(life, life.words.pop(0))

    def say(self, life: Life, word: object) -> None:
        if isinstance(word, SlotsMoved):
            self.rollout.moved(life.role, word)
            life.told = None
            return
        if word is None:  # made and sent in the same moment, or so the channel sees to it
            word = (sorted(life.gates), SlotHoldings(life.call, dict(life.doubts)))
        owned, holding = word
        packed = slot_loads.pack([slot_loads.SlotCount(slot, 1, 1) for slot in owned])
        if self.dropped == "stop":
            skip_the_stop(self.rollout.calling._call)
        self.rollout.on_heartbeat(life.role, packed, holding)
        if (goal := self.rollout.goal_for(life.role)) is not None:
            life.goal = goal

    # ---- the hand-over thread ----

    def hand(self) -> None:
        """Run one step of a server's handover thread."""
        life = self.some()
        if life is None or life.told is not None or life.goal is None:
            return
        if life.giving is not None:
            if not life.giving.target.alive and life.giving not in self.frames:
                self.doubt(life)
            return
        if life.goal is not life.taken:
            life.taken = life.goal
            if life.goal.call > life.call:
                life.turn += 1
                life.call = life.goal.call
                life.words.append((sorted(life.gates), SlotHoldings(life.call, dict(life.doubts))))
                return
        goal = life.goal
        if not goal.settled:
            return
        for slot, server in list(life.doubts.items()):
            if goal.placement.server_of_slot[slot] != life.rank and self.dropped != "let go":
                del life.doubts[slot], life.copies[slot]
            elif goal.addresses[server]:
                return self.give(life, slot, self.life_at[goal.addresses[server]])
        for parcel in goal.parcels:
            for slot in parcel.slots:
                if slot in life.gates:
                    return self.give(life, slot, self.life_at[parcel.address])

    def give(self, life: Life, slot: int, target: Life) -> None:
        """Close a slot's gate and send its last changes."""
        if not target.alive:
            return
        life.gates.discard(slot)
        if slot not in life.doubts:
            life.gifts[slot] = next(self.names)
        life.giving = Frame(slot, life.copies[slot], life, target, target.turn, life.gifts[slot])
        self.frames.append(life.giving)

    def doubt(self, life: Life) -> None:
        frame, life.giving = life.giving, None
        assert frame is not None
        frame.open = False
        life.doubts[frame.slot] = frame.target.rank

    def break_off(self) -> None:
        """Break a connection between two servers; sent frames may still arrive."""
        giving = [life for life in self.lives.values() if life.alive and life.giving]
        if giving:
            self.doubt(self.chance.choice(giving))

    def deliver(self) -> None:
        """Deliver a frame, and the reply."""
        if not self.frames:
            return
        frame = self.chance.choice(self.frames)
        if not frame.source.alive and self.chance.random() < 0.9:
            return  # what a dead server has sent may lie unread for long
        self.frames.remove(frame)
        source, target, slot = frame.source, frame.target, frame.slot
        heard = frame.open and source.alive and source.giving is frame
        if not target.alive:
            if heard:
                self.doubt(source)
            return
        taken = slot in target.gates or (
            (frame.turn == target.turn or self.dropped == "turn") and slot not in target.doubts
        )
        first = frame.gift not in target.settled or self.dropped == "once"
        taken = taken if first else target.settled[frame.gift]
        target.settled[frame.gift] = taken
        if first and taken and slot not in target.gates:
            target.copies[slot] = frame.copy
            self.open(target, slot)
        if not heard:
            return
        source.giving = None
        source.doubts.pop(slot, None)
        if taken:
            del source.copies[slot]
            source.told = SlotsMoved((slot,), target.rank)
            source.words.append(source.told)
        else:
            self.open(source, slot)


def skip_the_stop(call: RollCall) -> None:
    """Treat all servers as stopped at once."""
    if call.open and not call._all_still:
        call._all_still = True
