"""Pure. Maps error replies of an API server to exceptions, and decides about retries."""

import contextlib
from dataclasses import dataclass
from typing import Any

import msgspec

from springtide import errors

BUSY = (429, 500, 502, 503, 504)
"""HTTP statuses of a server in trouble. A 429 was not processed; requests with another status may have been."""
GONE = 410
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error reply of the server, or a broken connection."""

    status: int
    """HTTP status; 0 without a reply."""
    message: str = ""
    reason: str = ""
    """Reason such as `Conflict` or `AlreadyExists`."""
    after_s: float | None = None
    """Seconds until a retry, if the server gives them."""
    begun: bool = True
    """True if the server may have carried out the request."""


def read(status: int, body: bytes, retry_after: str | None = None) -> Refusal:
    """Parse an error reply: usually a `Status` object, but proxies send anything."""
    said: Any = None
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
        said = msgspec.json.decode(body)
    if not isinstance(said, dict):
        said = {"message": body.decode(errors="replace").strip()[:300]}
    after = retry_after if retry_after is not None else (said.get("details") or {}).get("retryAfterSeconds")
    try:
        after_s = None if after is None else float(after)
    except ValueError:  # the header holds a date
        after_s = None
    return Refusal(
        status=status,
        message=said.get("message") or f"HTTP {status}",
        reason=said.get("reason") or "",
        after_s=after_s,
        begun=status != 429,
    )


def pause(refusal: Refusal, attempt: int, *, repeatable: bool) -> float | None:
    """Seconds until the next attempt; None to give up.

    A request that is not `repeatable` is retried only if it was not begun.
    """
    if refusal.status and refusal.status not in BUSY:
        return None
    if refusal.begun and not repeatable:
        return None
    waits: float = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
    return waits if refusal.after_s is None else max(waits, refusal.after_s)


def error_of(refusal: Refusal, what: str, server: str) -> errors.SpringtideError:
    """Return the exception for a refusal; `what` names the request."""
    text = refusal.message
    match refusal.status:
        case 0:
            done = "" if not refusal.begun else " It may have been done or not."
            return errors.ClusterUnreachable(
                f"cannot {what}: the Kubernetes API at {server} does not answer ({text}).{done} "
                "Check that the address is right, that the cluster runs, and that nothing is between"
            )
        case 404:
            return errors.NotFound(f"cannot {what}: {text}")
        case 409:
            kind = errors.AlreadyThere if refusal.reason == "AlreadyExists" else errors.Conflict
            return kind(f"cannot {what}: {text}")
        case 410:
            return errors.Conflict(f"cannot {what}: {text}")
        case 401:
            return errors.Forbidden(
                f"cannot {what}: {server} does not know who asks ({text}); log in to the cluster again"
            )
        # a quota or a policy, not a missing permission
        case 403 if "is forbidden: " in text and 'resource "' not in text:
            return errors.ClusterRefused(f"cannot {what}: {text}")
        case 403:
            return errors.Forbidden(
                f"cannot {what}: {text}. Whoever runs the cluster must grant it with a Role and a RoleBinding; "
                "`springtide k8s install --dry-run` prints the ones that Springtide needs"
            )
        case status if status in BUSY:
            return errors.ClusterUnreachable(f"cannot {what}: the Kubernetes API at {server} says {status}: {text}")
    return errors.ClusterRefused(f"cannot {what}: {text}")
