"""Refusals as an API server words them: one exception, and a maker for each reason that clients tell apart.

Out: `Refused`, which `http` turns into a `Status` object with its code, and with `Retry-After` where there is one.
"""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
"""An object of the API."""


class Refused(Exception):
    """An answer other than success."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Json | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = dict(details or {})
        self.retry_after_s = retry_after_s
        if retry_after_s is not None:
            self.details.setdefault("retryAfterSeconds", max(1, round(retry_after_s)))

    def status(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


def success(resource: str, group: str, name: str, uid: str) -> Json:
    """What a deletion answers with when nothing is left of the object."""
    details = {"name": name, "group": group, "kind": resource, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def unauthorized() -> Refused:
    """401: no token, or one that nobody was given."""
    return Refused(401, "Unauthorized", "Unauthorized")


def forbidden(resource: str, name: str, why: str) -> Refused:
    called = f'{resource} "{name}"' if name else resource
    return Refused(403, "Forbidden", f"{called} is forbidden: {why}", details={"name": name, "kind": resource})


def not_found(resource: str, name: str, group: str = "") -> Refused:
    """404 of an object."""
    called = f"{resource}.{group}" if group else resource
    details = {"name": name, "kind": resource, **({"group": group} if group else {})}
    return Refused(404, "NotFound", f'{called} "{name}" not found', details=details)


def no_such_path() -> Refused:
    """404 of a path: no such kind."""
    return Refused(404, "NotFound", "the server could not find the requested resource")


def not_allowed(method: str) -> Refused:
    return Refused(
        405, "MethodNotAllowed", f"the server does not allow this method on the requested resource: {method}"
    )


def exists(resource: str, name: str) -> Refused:
    """409 of a creation."""
    return Refused(
        409, "AlreadyExists", f'{resource} "{name}" already exists', details={"name": name, "kind": resource}
    )


def conflict(resource: str, name: str, why: str = "") -> Refused:
    """409 of a change to something that has changed meanwhile."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return Refused(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource} "{name}": {why}',
        details={"name": name, "kind": resource},
    )


def gone(message: str = "The resourceVersion for the provided list or watch is too old.") -> Refused:
    """410: older than what is remembered."""
    return Refused(410, "Expired", message)


def unsupported(kind: str) -> Refused:
    """415: a patch in a format that this object does not take."""
    return Refused(
        415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {kind} is not accepted"
    )


def invalid(kind: str, group: str, name: str, faults: Sequence[str]) -> Refused:
    """422: `faults` are `path: what is wrong`."""
    causes = [
        {"reason": "FieldValueInvalid", "message": fault.partition(": ")[2], "field": fault.partition(": ")[0]}
        for fault in faults
    ]
    called = f"{kind}.{group}" if group else kind
    told = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    return Refused(
        422,
        "Invalid",
        f'{called} "{name}" is invalid: {told}',
        details={"name": name, "group": group, "kind": kind, "causes": causes},
    )


def too_many(message: str, retry_after_s: float, causes: Sequence[Json] = ()) -> Refused:
    """429: come again later."""
    return Refused(
        429, "TooManyRequests", message, details={"causes": list(causes)} if causes else {}, retry_after_s=retry_after_s
    )
