import pytest

from springtide import errors
from springtide.platforms.k8s.api import api_errors


def refusal(status, **fields):
    return api_errors.Refusal(status=status, **fields)


def test_a_status_object_is_read_and_so_is_what_a_proxy_says():
    said = api_errors.read(409, b'{"kind":"Status","message":"object changed","reason":"Conflict"}')
    assert (said.message, said.reason, said.begun) == ("object changed", "Conflict", True)
    assert api_errors.read(502, b"<h1>bad</h1>\n").message == "<h1>bad</h1>"
    assert api_errors.read(500, b"").message == "HTTP 500"
    assert api_errors.read(429, b"{}", "7").after_s == 7.0
    assert api_errors.read(429, b'{"details":{"retryAfterSeconds":3}}').after_s == 3.0
    assert api_errors.read(503, b"{}", "Wed, 21 Oct 2026 07:28:00 GMT").after_s is None


@pytest.mark.parametrize("status", api_errors.BUSY)
def test_what_may_be_done_twice_is_asked_again_when_the_server_has_trouble(status):
    assert api_errors.pause(api_errors.read(status, b"{}"), 0, repeatable=True) == api_errors.FIRST_PAUSE_S


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 422])
def test_a_refusal_of_the_request_itself_is_final(status):
    assert api_errors.pause(api_errors.read(status, b"{}"), 0, repeatable=True) is None


def test_what_must_not_be_done_twice_is_sent_again_only_if_it_was_not_begun():
    assert api_errors.pause(api_errors.read(503, b"{}"), 0, repeatable=False) is None
    assert api_errors.pause(refusal(0), 0, repeatable=False) is None
    assert api_errors.pause(refusal(0, begun=False), 0, repeatable=False) is not None
    assert api_errors.pause(api_errors.read(429, b"{}"), 0, repeatable=False) is not None


def test_pauses_grow_up_to_a_bound_and_are_never_shorter_than_the_server_asks():
    pauses = [api_errors.pause(refusal(503), attempt, repeatable=True) for attempt in range(10)]
    assert pauses == sorted(pauses) and pauses[-1] == api_errors.LONGEST_PAUSE_S
    assert api_errors.pause(refusal(429, after_s=9.0, begun=False), 0, repeatable=True) == 9.0


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
def test_each_refusal_is_an_error_that_says_what_was_asked(status, reason, kind):
    error = api_errors.error_of(refusal(status, reason=reason, message="because"), "get pods ctr", "https://c")
    assert type(error) is kind and "get pods ctr" in str(error) and "because" in str(error)


def test_who_may_not_is_told_what_to_grant():
    assert "RoleBinding" in str(api_errors.error_of(refusal(403, message="no"), "list pods", "https://c"))


def test_a_quota_that_is_used_up_is_no_matter_of_rights():
    said = 'pods "ctr-worker-0-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4'
    error = api_errors.error_of(
        api_errors.Refusal(status=403, message=said, reason="Forbidden"), "create pods", "https://k"
    )
    assert isinstance(error, errors.ClusterRefused) and "grant" not in str(error)
