"""Jobs on a real Ray cluster of several raylets under faults and scaling: counts are exact."""

import json
import pathlib
import subprocess
import sys
from dataclasses import replace

import pytest

from springtide.domain.data.data_workers import FeedRules
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobSpec
from springtide.platforms.agent.run_plan import RunPlan
from springtide.rpc.messages import messages
from springtide_lab.testing import ray_cluster
from tests import waiting
from tests.process import counting, ray_world

pytestmark = [pytest.mark.process, pytest.mark.extra("ray"), pytest.mark.timeout(400)]

EPOCHS, BATCH = 1, 20


@pytest.fixture(scope="module")
def world():
    """A head and another node, for all tests of this file."""
    world = ray_world.start(nodes=1)
    yield world
    world.close()


def plan_of(folder, ids, *, name, pause_s=0.1, workers=2, servers=2, **others):
    script = counting.write(folder, ids)
    spec = JobSpec(
        name=name,
        workers=workers,
        servers=servers,
        slots=64,
        heartbeat_s=0.2,
        relaunches=50,
        backoff_s=0.1,
        **{"checkpoints": CheckpointRules(every_s=1.0), **others},
    )
    return RunPlan(spec=spec, script=str(script), arguments=(str(folder), str(EPOCHS), str(BATCH), str(pause_s)))


def has_ended(pid):
    """Whether a process has ended."""
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_ray_job_trains_once_after_losing_master_steward_and_a_node(world, tmp_path, rng):
    ids = counting.draw(rng, 8_000)
    job = world.do("submit", plan_of(tmp_path, ids, name="hurt", workers=1, pause_s=0.4))
    world.do("until", job, samples=100, workers=1, servers=2)
    world.do("ask", job, messages.ScaleRequest(2, None, "asked by a test"))
    world.do("until", job, workers=2)
    before = world.do("holders", job)
    assert before["server-0"][0] != before["server-1"][0], "servers are spread over the nodes"

    world.do("kill_master", job)
    world.do("until", job, samples=world.do("status", job).samples + 100)
    world.do("kill_steward", job)
    world.do("until", job, samples=world.do("status", job).samples + 100)
    assert world.do("holders", job) == before, "roles outlive their steward, and the next one adopts them"

    (victim,) = world.do("nodes")
    lost = {role: pid for role, (node, pid) in before.items() if node == victim}
    assert {role.partition("-")[0] for role in lost} == {"server", "worker"}, before
    world.do("remove", victim)
    world.do("until", job, life=1)
    counting.hurry(tmp_path)
    ended = world.do("wait", job)
    assert ended.phase == "finished", ended.why
    assert ended.master.term >= 3
    assert counting.differences(tmp_path, ids, epochs=EPOCHS, batch=BATCH) == {}
    story = world.do("story", job)
    how = [event["how"] for event in story if event["event"] == "exited" and event["role"] in lost]
    assert any("evict" in each for each in how), how
    waiting.until(lambda: all(has_ended(pid) for pid in lost.values()), "nothing is left of a node that is gone")
    waiting.until(lambda: all(has_ended(pid) for _, pid in before.values()), "nor of the other")
    assert world.do("logs", job, "server-1"), "logs of roles are kept with the job"
    assert world.do("holders", job) == {}


@pytest.mark.soak
def test_ray_job_counts_exactly_while_workers_and_servers_are_scaled(world, tmp_path, rng):
    world.do("add")
    ids = counting.draw(rng, 20_000)
    job = world.do("submit", plan_of(tmp_path, ids, name="scaled", workers=1, servers=1))
    world.do("until", job, samples=100, workers=1, servers=1)
    world.do("ask", job, messages.ScaleRequest(3, 2, "asked by a test"))
    world.do("until", job, workers=3, servers=2)
    world.do("ask", job, messages.ScaleRequest(1, 1, "asked by a test"))
    world.do("until", job, workers=1, servers=1)
    world.do("ask", job, messages.ScaleRequest(2, None, "asked by a test"))
    counting.hurry(tmp_path)
    assert world.do("wait", job).phase == "finished"
    assert counting.differences(tmp_path, ids, epochs=EPOCHS, batch=BATCH) == {}


@pytest.mark.soak
def test_roles_on_a_draining_ray_node_hand_over_without_loss(world, tmp_path, rng):
    node, spare = world.do("add"), world.do("add")
    ids = counting.draw(rng, 20_000)
    job = world.do("submit", plan_of(tmp_path, ids, name="announced", workers=3, servers=2))
    world.do("until", job, samples=100, workers=3, servers=2)
    there = [role for role, (where, _) in world.do("holders", job).items() if where in (node, spare)]
    assert there, "three workers of 0.8 and two servers do not fit on one node of two cores"
    doomed = world.do("holders", job)[there[0]][0]
    world.do("announce", doomed, 120.0)
    waiting.until(lambda: all(where != doomed for where, _ in world.do("holders", job).values()), within_s=90)
    world.do("until", job, workers=3, servers=2)
    world.do("remove", doomed)
    counting.hurry(tmp_path)
    ended = world.do("wait", job)
    assert ended.phase == "finished" and ended.roles.relaunches == 0, ended
    assert counting.differences(tmp_path, ids, epochs=EPOCHS, batch=BATCH) == {}
    assert any("takes node" in event["why"] for event in world.do("story", job) if event["event"] == "decision")


@pytest.mark.soak
def test_data_worker_moves_to_its_trainers_node_once_there_is_room(tmp_path, rng):
    with ray_world.start(nodes=1) as world:
        ids, home = counting.draw(rng, 40_000), world.do("home")
        rules = FeedRules(workers=1, cpu=0.5)
        plan = plan_of(tmp_path, ids, name="moving", workers=1, servers=1, worker_cpu=1.0, feeding=rules)
        somebody = world.do("occupy", home, 0.6)  # a worker of 1.0 and a server of 0.2 fit there, nothing else
        world.do("submit", plan)
        fed = waiting.until(lambda: feeding_nodes(world, "moving"), within_s=90)
        trainer = world.do("holders", "moving")["worker-0"]
        if trainer[0] != home:
            pytest.skip("Ray has put the trainer elsewhere")
        assert fed["data-worker-0"][0] != home, "there was no room beside the trainer"
        world.do("vacate", somebody)
        moved = waiting.until(lambda: "data-worker-1" in (now := feeding_nodes(world, "moving")) and now, within_s=120)
        assert moved["data-worker-1"][0] == home
        waiting.until(lambda: "data-worker-0" not in world.do("holders", "moving"), within_s=60)
        assert world.do("holders", "moving")["worker-0"] == trainer, "nobody else was started again"
        counting.hurry(tmp_path)
        ended = world.do("wait", "moving")
        assert ended.phase == "finished" and ended.roles.relaunches == 0, ended
        assert counting.differences(tmp_path, ids, epochs=EPOCHS, batch=BATCH) == {}
        told = [
            event
            for event in world.do("story", "moving")
            if "room for this data worker beside a trainer" in str(event.get("why"))
        ]
        assert "data-worker-1 in place of data-worker-0" in str(told)


def feeding_nodes(world, job):
    """Nodes of data workers, once batches come from them."""
    feed = world.do("status", job).data.feed
    held = world.do("holders", job) if feed is not None and feed.made else {}
    return {role: where for role, where in held.items() if role.startswith("data-worker")}


@pytest.mark.soak
def test_unschedulable_worker_is_dropped_and_the_job_continues_smaller(tmp_path, rng):
    with ray_world.start(nodes=0) as world:  # one of two cores: a server of 0.2, and one worker of 1.0 beside it
        ids = counting.draw(rng, 4_000)
        plan = plan_of(tmp_path, ids, name="wide", workers=2, servers=1, worker_cpu=1.0)
        world.do("submit", plan, pending_s=5.0)
        world.do("until", "wide", samples=100, workers=1)
        lacks = waiting.until(lambda: world.do("status", "wide").roles.lacks, "a word on who is missing")
        counting.hurry(tmp_path)
        assert world.do("wait", "wide").phase == "finished"
        assert "asks for 1 CPU" in lacks
        assert counting.differences(tmp_path, ids, epochs=EPOCHS, batch=BATCH) == {}


@pytest.mark.soak
def test_stopped_ray_job_leaves_no_process(world, tmp_path, rng):
    ids = counting.draw(rng, 100_000)
    job = world.do("submit", plan_of(tmp_path, ids, name="stopped"))
    world.do("until", job, samples=100, workers=2, servers=2)
    held = world.do("holders", job)
    world.do("ask", job, messages.StopRequest("enough"))
    assert world.do("wait", job).phase == "stopped"
    waiting.until(lambda: all(has_ended(pid) for _, pid in held.values()), "all of its processes are gone")


@pytest.mark.soak
def test_ray_job_with_a_lost_run_folder_restarts_from_checkpoint_copies(world, tmp_path, rng):
    ids = counting.draw(rng, 6_000)
    rules = CheckpointRules(every_s=0.5, url=f"file://{tmp_path}/copies", upload_every_s=0.5)
    plan = plan_of(tmp_path, ids, name="burnt", workers=1, checkpoints=rules)
    job = world.do("submit", plan)
    waiting.until(lambda: world.do("status", job).checkpoints.uploaded, "a copy of a checkpoint")
    world.do("lose_run_folder", job)
    counting.hurry(tmp_path)
    assert world.do("wait", job).phase == "finished"
    assert counting.differences(tmp_path, ids, epochs=EPOCHS, batch=BATCH) == {}
    assert any(event["event"] == "resumed" for event in world.do("story", job))


@pytest.mark.soak
def test_ray_job_with_a_lost_run_folder_and_no_copy_gives_advice(world, tmp_path, rng):
    job = world.do("submit", plan_of(tmp_path, counting.draw(rng, 6_000), name="ashes", workers=1))
    world.do("until", job, samples=100)
    world.do("lose_run_folder", job)
    ended = world.do("wait", job)
    assert ended.phase == "failed" and "checkpoints.url" in ended.why
    assert world.do("holders", job) == {}


@pytest.mark.soak
def test_ray_job_trains_over_tls(world, tmp_path, rng):
    ids = counting.draw(rng, 2_000)
    job = world.do("submit", replace(plan_of(tmp_path, ids, name="sealed", pause_s=0.0, workers=1), tls=True))
    assert world.do("wait", job).phase == "finished"
    assert counting.differences(tmp_path, ids, epochs=EPOCHS, batch=BATCH) == {}


@pytest.mark.soak
def test_ray_job_is_submitted_followed_and_stopped_by_commands(world, tmp_path, rng):
    counting.write(tmp_path, counting.draw(rng, 8_000))
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f'name: told\nscript: count.py\narguments: ["{tmp_path}", "1", "20", "0.05"]\n'
        "workers: {count: 1}\nservers: {count: 1}\n"
    )
    where = ("--platform", "ray", "--address", world.do("address"))
    assert command_json(tmp_path, "submit", str(spec), *where)["job"] == "told"
    world.do("until", "told", samples=100)
    assert command_json(tmp_path, "status", "told")["phase"] == "running"
    command_json(tmp_path, "scale", "told", "--workers", "2")
    world.do("until", "told", workers=2)
    assert "scale from 1 to 2 workers" in str(command_json(tmp_path, "explain", "told")["story"])
    assert set(command_json(tmp_path, "logs", "told")["logs"]) >= {"master", "server-0", "worker-0"}
    command_json(tmp_path, "stop", "told", "--wait")
    assert command_json(tmp_path, "status", "told", *where)["phase"] == "stopped"


@pytest.mark.soak
@pytest.mark.timeout(600)  # seven sessions from outside, each of which takes half a minute to begin on a busy machine
def test_ray_job_is_submitted_and_controlled_from_outside_the_cluster(tmp_path, rng):
    counting.write(tmp_path, counting.draw(rng, 20_000))  # more than there is time for
    spec = tmp_path / "job.yaml"
    spec.write_text(
        f'name: far\nscript: count.py\narguments: ["{tmp_path}", "1", "20", "0.5"]\n'
        "workers: {count: 1}\nservers: {count: 1}\n"
    )
    with ray_world.start(nodes=0, clients=True) as world:
        where = ("--platform", "ray", "--address", world.do("outside"))
        assert command_json(tmp_path, "submit", str(spec), *where)["job"] == "far"
        world.do("until", "far", samples=100)  # nobody of those who submitted it is there any more
        assert command_json(tmp_path, "status", "far")["phase"] == "running"
        command_json(tmp_path, "scale", "far", "--workers", "2")
        world.do("until", "far", workers=2)
        assert set(command_json(tmp_path, "logs", "far")["logs"]) >= {"master", "server-0", "worker-0"}
        assert "scale from 1 to 2 workers" in str(command_json(tmp_path, "explain", "far")["story"])
        command_json(tmp_path, "stop", "far", "--wait")
        assert command_json(tmp_path, "status", "far", *where)["phase"] == "stopped"


def command_json(folder, *command):
    """JSON output of a command run in that folder."""
    code = "import sys; from springtide.cli.app import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env=ray_cluster.environment(),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.soak
def test_interrupted_ray_program_drains_its_job(world, tmp_path, rng):
    counting.write(tmp_path, counting.draw(rng, 8_000))
    program = f"""
import ray
ray.init(address={world.do("address")!r}, log_to_driver=False)
import springtide.ray
from springtide.domain.spec.elastic_job import RoleWish

def seen(status):
    if status.samples:
        raise KeyboardInterrupt

one = RoleWish(count=1)
arguments = ({str(tmp_path)!r}, "1", "20", "0.1")
springtide.ray.run("count.py", name="inside", arguments=arguments, workers=one, servers=one, on_status=seen)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        env=ray_cluster.environment(),
    )
    assert "KeyboardInterrupt" in done.stderr, done.stderr
    ended = world.do("status", "inside")
    assert (ended.phase, ended.why) == ("stopped", "stopped by its program: KeyboardInterrupt")
