"""Data workers on Ray run beside their trainers or on quiet nodes, and move there when there is room."""

import asyncio

import pytest

from springtide.domain.core.roles import Life, Role, RoleKind
from springtide.rpc.messages import messages

pytestmark = pytest.mark.extra("ray")

WORKER = Life(Role(RoleKind.WORKER, 0))
FED = [Life(Role(RoleKind.DATA_WORKER, rank)) for rank in range(3)]


def nodes(free, homes=("home",), noise=None):
    from springtide.platforms.ray_cluster.placement import Nodes

    return Nodes(free=free, homes=homes, noise=noise or {})


@pytest.mark.parametrize(
    ("free", "noise", "wanted"),
    [
        ({"home": 1.0, "away": 8.0}, {"home": 3}, "home"),
        ({"home": 0.5, "loud": 8.0, "quiet": 1.0}, {"loud": 2, "quiet": 1}, "quiet"),
        ({"home": 0.5, "a": 1.0, "b": 2.0}, {}, "b"),
        ({"home": 0.9}, {}, ""),
    ],
)
def test_data_worker_goes_beside_a_trainer_or_to_the_quietest_node_with_room(free, noise, wanted):
    from springtide.platforms.ray_cluster import placement

    assert placement.choose(1.0, nodes(free, noise=noise)) == wanted


@pytest.mark.parametrize(
    ("placed", "free", "noise", "wanted"),
    [
        ({FED[0]: ("away", 1.0), FED[1]: ("home", 1.0)}, {"home": 1.0}, {}, (FED[0], "home")),
        ({FED[0]: ("away", 1.0)}, {"home": 0.5, "other": 4.0}, {}, None),
        ({FED[0]: ("loud", 1.0)}, {"home": 0.0, "quiet": 1.0}, {"loud": 1}, (FED[0], "quiet")),
        ({FED[0]: ("quiet", 1.0), FED[1]: ("loud", 1.0)}, {"home": 1.0}, {"loud": 1}, (FED[1], "home")),
        ({FED[0]: ("home", 1.0)}, {"home": 8.0, "other": 8.0}, {"home": 5}, None),
        ({FED[0]: ("away", 2.0), FED[1]: ("away", 1.0)}, {"home": 1.0}, {}, (FED[1], "home")),
    ],
)
def test_data_worker_moves_only_to_a_better_node_with_room(placed, free, noise, wanted):
    from springtide.platforms.ray_cluster import placement

    found = placement.best_move({WORKER: ("home", 1.0), **placed}, nodes(free, noise=noise))
    assert (None if found is None else (found.life, found.node)) == wanted


class World:
    """A cluster in which every evicted data worker is replaced at `next_at`."""

    def __init__(self, next_at):
        self.placed = {WORKER: ("home", 1.0), FED[0]: ("away", 1.0)}
        self.free, self.next_at, self.asked = 1.0, next_at, []

    async def ask(self, request):
        self.asked.append(str(request.role))
        del self.placed[Life(request.role, request.incarnation)]
        self.placed[FED[len(self.asked)]] = (self.next_at, 1.0)
        self.free -= self.next_at == "home"
        return messages.EvictionReply(free=False)

    def look(self, moving, times):
        async def work():
            for _ in range(times):
                await moving.poll()

        asyncio.run(work())


@pytest.mark.parametrize("next_at", ["home", "away"])
def test_data_worker_move_is_logged_once_and_a_full_node_skipped(monkeypatch, next_at):
    from springtide.platforms.ray_cluster import placement

    monkeypatch.setattr(placement, "AGAIN_S", 0.0)
    world = World(next_at)
    seen = placement.DataWorkerMover(lambda: world.placed, lambda: nodes({"home": world.free}), world.ask)
    world.look(seen, 3)
    assert world.asked == ["data-worker-0"]
    world.free += 1.0
    world.look(seen, 1)
    assert len(world.asked) == (1 if next_at == "home" else 2)


def test_multi_node_training_and_remote_feeding_make_nodes_noisy():
    from springtide.platforms.ray_cluster import job_order

    where = {
        "springtide/a/worker-0.0": "x",
        "springtide/a/worker-1.2": "y",
        "springtide/a/server-0.0": "z",
        "springtide/b/worker-0.0": "x",
        "springtide/mine/worker-0.0": "x",
        "springtide/mine/worker-1.0": "z",
        "springtide/b/data-worker-0.0": "x",
        "springtide/b/data-worker-1.0": "y",
        "springtide/a": "z",
        "other": "x",
    }
    assert job_order.noise("mine", where) == {"x": 1, "y": 2}
