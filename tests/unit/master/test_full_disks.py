"""A disk that fills while a checkpoint is written: the job trains on, says so, and the next one with room is whole."""

import contextlib
import resource

from springtide.checkpoint import reader
from springtide.domain.job import Phase
from springtide.embedding import restoring
from tests.unit.checkpoint import stores
from tests.unit.master.test_rounds import with_job


@contextlib.contextmanager
def no_file_longer_than(size):
    """As if the disk were full beyond that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files(job):
    return sorted(path.name for path in job.folder.iterdir() if path.name.startswith(("server-", "manifest-")))


def test_a_disk_that_fills_during_a_checkpoint_costs_that_one_and_keeps_nothing_of_it(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        await job.save()
        before = files(job)
        for attempt in (2, 3):
            await job.train()
            stores.train(job.servers[1].store, range(5_000), value=0.5)
            job.tick(31)
            with no_file_longer_than(60_000):
                await job.save()
            assert job.outcomes[-1] == (attempt, "failed")
            assert "server-1.0: cannot write to" in job.told()[-1]["why"]
            assert job.master.status().checkpoint_trouble and job.master.state.phase is Phase.RUNNING
            assert files(job) == before, "what server-0 had written would fill the disk further"
        job.tick(3)
        await job.save()
        assert job.outcomes[-1] == (4, "complete") and not job.master.status().checkpoint_trouble
        again = stores._native.Store(slots=stores.SLOTS, seed=5)
        found = reader.latest(str(job.folder))
        assert found.manifest is not None and (found.manifest.number, found.troubles) == (4, ())
        restoring.restore(again, str(job.folder), 4, range(stores.SLOTS))
        held = [stores.contents(server.store) for server in job.servers]
        mine = [server.owns(slot) for server in job.servers[1:] for slot in range(stores.SLOTS)]
        assert [held[second][1][slot] for slot, second in enumerate(mine)] == stores.contents(again)[1]
        assert again.rows() == sum(sum(map(server.owns, slots_of(server.store))) for server in job.servers)

    with_job(test, tmp_path)


def slots_of(store):
    """The slot of every row."""
    rows, _ = stores.contents(store)
    return store.slot_of(stores.TABLE.id, stores.np.array(sorted(rows))).tolist()


def test_a_manifest_that_finds_no_room_costs_its_checkpoint_and_the_next_is_whole(tmp_path):
    async def test(job):
        await job.train()
        job.tick()
        for rank in (0, 1):
            said = job.servers[rank].saver.save(await job.order(rank))
            with no_file_longer_than(1500):
                await job.ask(f"server-{rank}", said)
                await job.published()
        assert job.outcomes == [(1, "failed")] and "its manifest cannot be written" in job.told()[0]["why"]
        assert files(job) == []
        job.tick(3)
        await job.save()
        assert job.outcomes[-1] == (2, "complete") and reader.latest(str(job.folder)).manifest.number == 2

    with_job(test, tmp_path)
