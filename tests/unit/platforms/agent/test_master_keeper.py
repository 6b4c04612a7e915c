"""Keep a master running, on a scripted platform where the test lets masters listen, hang or die."""

import asyncio

import pytest

from springtide import errors
from springtide.domain.core.roles import Life, RoleExit
from springtide.platforms.agent import master_keeper
from springtide.platforms.agent.master_keeper import MOST_S, READ_S, AwakeClock
from springtide.platforms.agent.platform_api import RoleLaunch
from springtide.rpc.transport import addresses
from springtide.rpc.transport.addresses import MasterLocation
from springtide.telemetry import logs
from tests.full_disks import no_file_longer_than
from tests.waiting import soon

LOST = errors.MasterUnreachable("lost the connection")


class Scripted:
    """A platform whose masters behave as `play(self, term)` says."""

    def __init__(self, files, play):
        self.files, self.play = files, play
        self.terms, self.killed, self.alive = [], [], {}

    def start(self, launch, on_exit):
        term = launch.life.incarnation
        assert not self.alive, "two masters at once"
        self.terms.append(term)
        self.alive[term] = on_exit
        self.play(self, term)
        return 100 + term

    def listen(self, term):
        addresses.write_master(self.files.master, MasterLocation(term=term, pid=100 + term, address=f"here:{term}"))

    def die(self, term, **how):
        on_exit = self.alive.pop(term)
        on_exit(RoleExit(role=master_keeper.MASTER, incarnation=term, pid=100 + term, **how))

    def stop(self, life, *, kill):
        if life.incarnation in self.alive:
            assert kill
            self.killed.append(life.incarnation)
            self.die(life.incarnation, signal="SIGKILL")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Make a keeper over a script; pauses are recorded, not made."""
    files = logs.make_run(tmp_path, "train")
    monkeypatch.setattr(master_keeper, "PAUSES_S", (0.0,))
    monkeypatch.setattr(master_keeper, "DYING_S", 0.01)

    def make(play, next_term=None, **more):
        platform, launch = Scripted(files, play), lambda life: RoleLaunch(life=life, module="none")
        more = {"awake": AwakeClock(), "silence_s": 3.0, **more}
        return platform, master_keeper.MasterSupervisor(
            platform, files, launch, next_term or master_keeper.counting(), **more
        )

    return make


def test_each_master_has_a_higher_term(kept):
    platform, keep = kept(Scripted.listen)

    async def play():
        assert (await keep.start()).address == "here:1"
        platform.die(1, signal="SIGKILL")
        assert (await keep.replace(LOST)).address == "here:2"
        assert keep.why_replaced == "master (pid 101) was killed by SIGKILL"

    asyncio.run(play())
    assert platform.terms == [1, 2] and platform.killed == []


def test_hanging_master_is_killed_before_the_next_starts(kept):
    platform, keep = kept(Scripted.listen)

    async def play():
        await keep.start()
        assert (await keep.replace(errors.MasterUnreachable("silent for 3 s"))).address == "here:2"

    asyncio.run(play())
    assert platform.killed == [1]
    assert keep.why_replaced == "silent for 3 s, and the master was killed"


def test_master_that_dies_before_listening_is_replaced(kept):
    platform, keep = kept(lambda self, term: self.die(term, code=1) if term in (2, 3) else self.listen(term))

    async def play():
        await keep.start()
        platform.die(1, signal="SIGKILL")
        assert (await keep.replace(LOST)).address == "here:4"

    asyncio.run(play())
    assert platform.terms == [1, 2, 3, 4]


def test_each_master_after_one_that_is_too_slow_gets_twice_the_time(kept, monkeypatch, caplog):
    monkeypatch.setattr(master_keeper, "START_S", 0.05)
    platform, keep = kept(lambda self, term: None if term in (2, 3) else self.listen(term))

    async def play():
        await keep.start()
        platform.die(1, signal="SIGKILL")
        assert (await keep.replace(LOST)).address == "here:4"

    asyncio.run(play())
    waits = [record.getMessage().partition("did not listen within ")[2][:6] for record in caplog.records]
    assert waits == ["0.05 s", "0.1 s."]


def test_each_master_after_one_that_was_silent_too_long_gets_twice_the_time_to_reply(kept, monkeypatch):
    monkeypatch.setattr(master_keeper, "MOST_SILENCE_S", 0.3)
    platform, keep = kept(Scripted.listen, silence_s=0.1)
    told = []

    async def play():
        await keep.start()
        for _ in range(3):
            with pytest.raises(errors.MasterUnreachable) as silent:
                await keep.reply(asyncio.Event().wait())
            told.append(str(silent.value).partition(": ")[0])
            await keep.replace(silent.value)

    asyncio.run(play())
    assert told == [f"the master has been silent for {seconds} s" for seconds in ("0.1", "0.2", "0.3")]
    assert platform.killed == [1, 2, 3]


def test_a_master_that_has_served_for_long_is_not_given_more_time(kept, monkeypatch):
    monkeypatch.setattr(master_keeper, "STEADY_S", 0.0)
    _, keep = kept(Scripted.listen, silence_s=0.1)

    async def play():
        await keep.start()
        for _ in range(2):
            with pytest.raises(errors.MasterUnreachable, match=r"silent for 0\.1 s"):
                await keep.reply(asyncio.Event().wait())
            assert await keep.reply(asyncio.sleep(0, "here")) == "here"

    asyncio.run(play())


def test_masters_that_keep_dying_at_once_fail_the_job_with_their_log(kept):
    platform, keep = kept(lambda self, term: self.listen(term) if term == 1 else self.die(term, code=1))
    platform.files.log_of(master_keeper.MASTER).write_text(
        "Traceback\nsqlite3.DatabaseError: file is not a database\n\n"
    )

    async def play():
        await keep.start()
        platform.die(1, signal="SIGKILL")
        await keep.replace(LOST)

    with pytest.raises(errors.JobFailed) as failed:
        asyncio.run(play())
    assert "exited with status 1" in str(failed.value)
    assert str(failed.value).endswith("ends: sqlite3.DatabaseError: file is not a database")
    assert len(platform.terms) == master_keeper.SHORT_LIVES


def test_first_master_without_disk_space_fails_at_once(kept):
    _, keep = kept(lambda self, term: self.die(term, code=1), disk_s=600.0)
    with (
        no_file_longer_than(0),
        pytest.raises(errors.MasterUnreachable, match=r"Cannot write to .*choose another folder with --logs"),
    ):
        asyncio.run(keep.start())


def test_first_master_that_cannot_listen_says_why(kept):
    def refuse(self, term):
        addresses.write_master(self.files.master, MasterLocation(term=term, error="port 1 is taken", kind="PortTaken"))

    _, keep = kept(refuse)
    with pytest.raises(errors.PortTaken, match="port 1 is taken"):
        asyncio.run(keep.start())


def test_incarnation_is_named_for_its_role_and_number():
    assert str(Life(master_keeper.MASTER, 2)) == "master.2"


def test_terms_come_from_the_platform_and_never_decrease(kept):
    given = iter([7, 9, 8])

    async def next_term():
        return next(given)

    platform, keep = kept(Scripted.listen, next_term)

    async def play():
        await keep.start()
        platform.die(7, signal="SIGKILL")
        await keep.replace(LOST)
        platform.die(9, signal="SIGKILL")
        await keep.replace(LOST)

    with pytest.raises(errors.JobFailed, match="master term 8, but term 9 was used before"):
        asyncio.run(play())
    assert platform.terms == [7, 9]


def test_replaced_keeper_starts_no_master(kept):
    async def next_term():
        raise errors.Fenced("another agent has the job")

    platform, keep = kept(Scripted.listen, next_term)
    with pytest.raises(errors.Fenced):
        asyncio.run(keep.start())
    assert platform.terms == []


def test_unreachable_platform_is_asked_again_for_a_term(kept):
    answers = [1, errors.ClusterUnreachable("it restarts"), errors.Conflict("somebody else was quicker"), 2]

    async def next_term():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    platform, keep = kept(Scripted.listen, next_term)

    async def play():
        await keep.start()
        platform.die(1, signal="SIGKILL")
        assert (await keep.replace(LOST)).term == 2

    asyncio.run(play())
    assert platform.terms == [1, 2]


def test_next_master_waits_for_a_full_disk(kept, monkeypatch):
    monkeypatch.setattr(master_keeper, "ROOM_LOOK_S", 0.01)
    said = []
    platform, keep = kept(Scripted.listen, disk_s=60.0, say=said.append)

    async def play():
        await keep.start()
        platform.die(1, signal="SIGKILL")
        with no_file_longer_than(0):
            replacing = asyncio.create_task(keep.replace(LOST))
            await soon(lambda: said, "it is said")
            assert platform.terms == [1] and "accepts no files" in said[0]
        assert (await replacing).address == "here:2"

    asyncio.run(play())
    assert platform.terms == [1, 2]


def test_masters_without_journal_space_are_retried_until_there_is_some(kept, monkeypatch):
    monkeypatch.setattr(master_keeper, "ROOM_LOOK_S", 0.0)
    last = master_keeper.SHORT_LIVES + 3

    def no_room(self, term):
        if 1 < term < last:
            said = MasterLocation(term=term, error="no room left to write journal.db", kind="DiskFull")
            addresses.write_master(self.files.master, said)
        else:
            self.listen(term)

    platform, keep = kept(no_room, disk_s=60.0)

    async def play():
        await keep.start()
        platform.die(1, signal="SIGKILL")
        assert (await keep.replace(LOST)).term == last

    asyncio.run(play())


def test_disk_without_journal_space_fails_the_job_after_the_limit(kept):
    def no_room(self, term):
        self.listen(1)
        if term > 1:
            said = MasterLocation(term=term, error="no room left to write journal.db", kind="DiskFull")
            addresses.write_master(self.files.master, said)

    platform, keep = kept(no_room, disk_s=0.0)

    async def play():
        await keep.start()
        platform.die(1, signal="SIGKILL")
        with pytest.raises(errors.DiskFull, match=r"no room left to write journal[.]db"):
            await keep.replace(LOST)

    asyncio.run(play())


def test_disk_that_stays_full_fails_the_job_after_the_limit(kept, monkeypatch):
    monkeypatch.setattr(master_keeper, "ROOM_LOOK_S", 0.01)
    platform, keep = kept(Scripted.listen, disk_s=0.02)

    async def play():
        await keep.start()
        platform.die(1, signal="SIGKILL")
        with no_file_longer_than(0), pytest.raises(errors.JobFailed, match=r"accepted no files .* for 0[.]02 s"):
            await keep.replace(LOST)

    asyncio.run(play())
    assert platform.terms == [1]


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


def test_awake_clock_advances_while_read():
    clock = Clock()
    awake = AwakeClock(clock)
    for _ in range(100):
        clock.now += READ_S
        awake.now()
    assert awake.now() == pytest.approx(100 * READ_S)


def test_awake_clock_skips_time_in_which_the_process_was_stopped():
    clock = Clock()
    awake = AwakeClock(clock)
    clock.now += 75.0
    assert awake.now() == MOST_S


def test_answer_during_a_stop_of_this_process_counts():
    clock = Clock()
    awake = AwakeClock(clock)

    async def answer(asked, here):
        asked.set()
        await here.wait()
        return "here"

    async def play():
        asked, here = asyncio.Event(), asyncio.Event()
        asking = asyncio.create_task(awake.within(30.0, answer(asked, here)))
        await asked.wait()
        clock.now += 75.0
        asyncio.get_running_loop().call_later(3 * READ_S, here.set)  # after some looks at a clock that has jumped
        assert await asking == "here"

    asyncio.run(play())


def test_silent_master_times_out_while_this_process_runs():
    async def play():
        with pytest.raises(TimeoutError):
            await AwakeClock().within(0.05, asyncio.Event().wait())

    asyncio.run(play())
