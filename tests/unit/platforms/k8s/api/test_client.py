"""The API client against a scripted server."""

import asyncio
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.platforms.k8s.api import client, kubeconfig
from springtide.platforms.k8s.api.client import Client
from springtide.platforms.k8s.api.kinds import ELASTIC_JOBS, LEASES, NODES, PODS, key_of

with contextlib.suppress(ImportError):
    from aiohttp import web

pytestmark = pytest.mark.extra("aiohttp")


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.001)


class Server:
    """Answers requests in turn from `plans` and records them."""

    def __init__(self):
        self.plans, self.asked = [], []

    async def answer(self, request):
        self.asked.append((request.method, request.path_qs, (await request.text()), request.headers))
        plan = self.plans.pop(0) if self.plans else (200, {})
        if callable(plan):
            return await plan(request)
        status, body, *more = plan
        return web.json_response(body, status=status, headers=more[0] if more else None)


def with_server(work, *, within_s=5.0):
    async def run():
        server = Server()
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        reached = kubeconfig.Access(server=f"http://127.0.0.1:{port}", where="a test", namespace="team", token="t")
        async with Client(reached, within_s=within_s) as client:
            try:
                await work(client, server)
            finally:
                await runner.cleanup()

    asyncio.run(run())


async def hang_up(request):
    request.transport.close()
    return web.Response()


def test_request_paths_bodies_and_headers_match_the_api():
    async def work(client, server):
        await client.get(PODS, "ctr")
        await client.get(NODES, "n1")
        await client.create(ELASTIC_JOBS, ELASTIC_JOBS.body("ctr", spec={"script": "a.py"}), namespace="other")
        await client.patch(ELASTIC_JOBS, "ctr", {"status": {"phase": "x"}}, subresource="status")
        await client.patch(PODS, "p", {"spec": {}}, how="strategic")
        await client.delete(PODS, "p", grace_s=0, uid="u", propagation="Background")
        asked = [(method, path) for method, path, _, _ in server.asked]
        assert asked == [
            ("GET", "/api/v1/namespaces/team/pods/ctr"),
            ("GET", "/api/v1/nodes/n1"),
            ("POST", "/apis/springtide.dev/v1alpha1/namespaces/other/elasticjobs"),
            ("PATCH", "/apis/springtide.dev/v1alpha1/namespaces/team/elasticjobs/ctr/status"),
            ("PATCH", "/api/v1/namespaces/team/pods/p"),
            ("DELETE", "/api/v1/namespaces/team/pods/p"),
        ]
        assert all(headers["Authorization"] == "Bearer t" for *_, headers in server.asked)
        assert server.asked[3][3]["Content-Type"] == "application/merge-patch+json"
        assert server.asked[4][3]["Content-Type"] == "application/strategic-merge-patch+json"
        options = json.loads(server.asked[5][2])
        assert options["gracePeriodSeconds"] == 0 and options["preconditions"] == {"uid": "u"}

    with_server(work)


def test_list_is_read_in_pages_and_its_items_have_their_kind():
    async def work(client, server):
        server.plans = [
            (200, {"metadata": {"continue": "more"}, "items": [{"metadata": {"name": "a"}}]}),
            (200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]}),
        ]
        listing = await client.list(PODS, labels="springtide.dev/job=ctr")
        assert [each["metadata"]["name"] for each in listing.items] == ["a", "b"] and listing.version == "7"
        assert listing.items[0]["kind"] == "Pod"
        assert "continue=more" in server.asked[1][1] and "labelSelector=springtide.dev/job%3Dctr" in server.asked[1][1]

    with_server(work)


def test_failing_server_is_retried():
    async def work(client, server):
        server.plans = [(500, {}), (429, {}, {"Retry-After": "0"}), hang_up, (200, {"metadata": {"name": "x"}})]
        assert (await client.get(PODS, "x"))["metadata"]["name"] == "x"
        assert len(server.asked) == 4

    with_server(work)


def test_possibly_executed_create_is_not_retried():
    async def work(client, server):
        server.plans = [(429, {}, {"Retry-After": "0"}), hang_up]
        with pytest.raises(errors.ClusterUnreachable, match="may or may not have carried out the request"):
            await client.create(PODS, PODS.body("x"))
        assert len(server.asked) == 2  # 429: it was not begun

    with_server(work)


def test_expired_token_is_reread_once():
    async def work(client, server):
        server.plans = [(401, {}), (200, {}), (401, {}), (401, {"message": "who"})]
        await client.get(PODS, "x")
        with pytest.raises(errors.Forbidden, match="log in"):
            await client.get(PODS, "x")

    with_server(work)


def test_conflict_and_not_found_are_raised_at_once():
    async def work(client, server):
        server.plans = [(409, {"reason": "Conflict", "message": "m"}), (404, {"message": "none"})]
        with pytest.raises(errors.Conflict):
            await client.update(LEASES, LEASES.body("l"))
        with pytest.raises(errors.NotFound, match="none"):
            await client.delete(PODS, "x")

    with_server(work)


def test_unreachable_server_is_reported_with_advice_after_the_deadline():
    async def work():
        async with Client(kubeconfig.Access(server="http://127.0.0.1:9", where="context 'c'"), within_s=0.05) as client:
            with pytest.raises(errors.ClusterUnreachable, match="Check that the address is right"):
                await client.get(PODS, "x")

    asyncio.run(work())


def test_kinds_and_subresources_are_discovered():
    async def work(client, server):
        known = {"resources": [{"name": "pods"}, {"name": "pods/resize"}]}
        server.plans = [(200, known), (200, known), (404, {})]
        assert await client.has(PODS, "resize")
        assert not await client.has(PODS, "magic")
        assert not await client.has(ELASTIC_JOBS)
        assert server.asked[2][1] == "/apis/springtide.dev/v1alpha1"

    with_server(work)


def stream(*lines, break_off=False):
    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write((line if isinstance(line, str) else json.dumps(line)).encode() + b"\n")
        if break_off:
            request.transport.close()
        return response

    return answer


def pod(name, version, uid="u"):
    return {"metadata": {"name": name, "namespace": "team", "uid": uid, "resourceVersion": str(version)}}


def test_watch_resumes_after_a_break_and_relists_after_410():
    async def work(client, server):
        server.plans = [
            (200, {"metadata": {"resourceVersion": "5"}, "items": [pod("a", 4)]}),
            stream(
                {"type": "ADDED", "object": pod("b", 6)}, {"type": "BOOKMARK", "object": pod("", 8)}, break_off=True
            ),
            stream({"type": "MODIFIED", "object": pod("a", 9)}),
            stream({"type": "ERROR", "object": {"code": 410}}),
            (200, {"metadata": {"resourceVersion": "20"}, "items": [pod("b", 15, uid="other")]}),
            (410, {"message": "too old"}),
            (200, {"metadata": {"resourceVersion": "30"}, "items": [pod("b", 15, uid="other"), pod("c", 29)]}),
        ]
        seen = []
        async for change in client.watch(PODS):
            seen.append((change.what, change.thing.get("metadata", {}).get("name", "")))
            if seen[-1] == ("added", "c"):
                break
        assert seen == [
            ("added", "a"),
            ("synced", ""),
            ("added", "b"),
            ("changed", "a"),
            ("gone", "a"),
            ("gone", "b"),
            ("added", "b"),
            ("added", "c"),
        ]
        assert "resourceVersion=5" in server.asked[1][1] and "resourceVersion=8" in server.asked[2][1]

    with_server(work)


def test_forbidden_watch_is_raised():
    async def work(client, server):
        server.plans = [(403, {"message": "no"})]
        with pytest.raises(errors.Forbidden):
            async for _ in client.watch(PODS):
                pass

    with_server(work)


def test_logs_arrive_line_by_line():
    async def work(client, server):
        server.plans = [stream("one", "two")]
        assert [line async for line in client.logs("p", lines=2, follow=True)] == ["one", "two"]
        assert "follow=true" in server.asked[0][1] and "tailLines=2" in server.asked[0][1]

    with_server(work)


def make_object(name, uid, version):
    return {"metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)}}


histories = st.lists(
    st.tuples(st.sampled_from(["make", "change", "delete", "forget"]), st.sampled_from("abc")), max_size=40
)


@given(histories)
def test_mirror_equals_the_cluster_after_lost_events(history):
    """`forget`: a stretch of which no event arrives, and then all is read anew."""
    cluster, known, mirror, lost = {}, client.KnownObjects(), {}, False

    def apply(changes):
        for change in changes:
            key = key_of(change.thing)[1]
            if change.what == "gone":
                assert mirror.pop(key)["metadata"]["uid"] == change.thing["metadata"]["uid"]
            else:
                assert (key in mirror) == (change.what == "changed")
                mirror[key] = change.thing

    for version, (step, name) in enumerate(history, 1):
        event = ""
        if step == "make" and name not in cluster:
            cluster[name], event = make_object(name, f"uid-{version}", version), "ADDED"
        elif step == "change" and name in cluster:
            cluster[name], event = make_object(name, cluster[name]["metadata"]["uid"], version), "MODIFIED"
        elif step == "delete" and name in cluster:
            old, event = cluster.pop(name), "DELETED"
        elif step == "forget":
            lost = not lost
            if not lost:
                apply(known.relisted(cluster.values()))
        if event and not lost:
            apply(known.apply(event, old if event == "DELETED" else cluster[name]))
    apply(known.relisted(cluster.values()))
    assert mirror == cluster
    assert known.relisted(cluster.values()) == []


def test_watch_event_gives_the_version_to_resume_from():
    assert client.parse_event(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}', "3")[1] == "9"
    assert client.KnownObjects().apply("BOOKMARK", {}) == []


def test_expired_version_is_not_an_error_but_another_error_is():
    with pytest.raises(errors.Conflict):
        client.parse_event(b'{"type":"ERROR","object":{"code":410}}', "3")
    with pytest.raises(errors.ClusterUnreachable, match="etcd"):
        client.parse_event(b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}', "3")
    with pytest.raises(errors.ClusterUnreachable, match="an invalid event"):
        client.parse_event(b"<html>", "3")


def refusal(status, **fields):
    return client.Refusal(status=status, **fields)


def test_refusals_are_parsed_from_status_objects_and_proxy_text():
    said = client.read_refusal(409, b'{"kind":"Status","message":"object changed","reason":"Conflict"}')
    assert (said.message, said.reason, said.begun) == ("object changed", "Conflict", True)
    assert client.read_refusal(502, b"<h1>bad</h1>\n").message == "<h1>bad</h1>"
    assert client.read_refusal(500, b"").message == "HTTP 500"
    assert client.read_refusal(429, b"{}", "7").after_s == 7.0
    assert client.read_refusal(429, b'{"details":{"retryAfterSeconds":3}}').after_s == 3.0
    assert client.read_refusal(503, b"{}", "Wed, 21 Oct 2026 07:28:00 GMT").after_s is None


@pytest.mark.parametrize("status", client.BUSY)
def test_repeatable_request_is_retried_on_server_trouble(status):
    assert client.retry_pause(client.read_refusal(status, b"{}"), 0, repeatable=True) == client.FIRST_PAUSE_S


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422])
def test_refusal_of_the_request_itself_is_final(status):
    assert client.retry_pause(client.read_refusal(status, b"{}"), 0, repeatable=True) is None


def test_unrepeatable_request_is_retried_only_if_not_begun():
    assert client.retry_pause(client.read_refusal(503, b"{}"), 0, repeatable=False) is None
    assert client.retry_pause(refusal(0), 0, repeatable=False) is None
    assert client.retry_pause(refusal(0, begun=False), 0, repeatable=False) is not None
    assert client.retry_pause(client.read_refusal(429, b"{}"), 0, repeatable=False) is not None


def test_retry_pauses_grow_to_a_bound_and_respect_retry_after():
    pauses = [client.retry_pause(refusal(503), attempt, repeatable=True) for attempt in range(20)]
    assert pauses == sorted(pauses) and pauses[-1] == client.LONGEST_PAUSE_S
    assert client.retry_pause(refusal(429, after_s=9.0, begun=False), 0, repeatable=True) == 9.0


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (0, "", errors.ClusterUnreachable),
        (401, "", errors.Forbidden),
        (403, "", errors.Forbidden),
        (404, "", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyThere),
        (410, "Gone", errors.Conflict),
        (422, "Invalid", errors.ClusterRefused),
        (503, "", errors.ClusterUnreachable),
    ],
)
def test_each_refusal_becomes_an_error_naming_the_request(status, reason, kind):
    error = client.error_of(refusal(status, reason=reason, message="because"), "get pods ctr", "https://c")
    assert type(error) is kind and "get pods ctr" in str(error) and "because" in str(error)


def test_forbidden_error_says_what_to_grant():
    assert "RoleBinding" in str(client.error_of(refusal(403, message="no"), "list pods", "https://c"))


def test_exhausted_quota_is_not_a_permission_error():
    said = 'pods "ctr-worker-0-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4'
    error = client.error_of(client.Refusal(status=403, message=said, reason="Forbidden"), "create pods", "https://k")
    assert isinstance(error, errors.ClusterRefused) and "grant" not in str(error)
