"""Build refusals with the messages of a real API server: one exception, and a function for each reason.

Out: `Refused`, which `http` turns into a `Status` object with its code and, if given, a `Retry-After` header.
"""

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]
"""An object of the API."""


class Refused(Exception):
    """Exception for an answer other than success."""

    def __init__(self, code: int, reason: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.retry_after_s = retry_after_s

    def status(self) -> Json:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def bad_request(message: str) -> Refused:
    return Refused(400, "BadRequest", message)


def forbidden(resource: str, name: str, why: str) -> Refused:
    called = f'{resource} "{name}"' if name else resource
    return Refused(403, "Forbidden", f"{called} is forbidden: {why}")


def not_found(resource: str, name: str) -> Refused:
    """Return the refusal (404) of a request for a missing object."""
    return Refused(404, "NotFound", f'{resource} "{name}" not found')


def no_such_path() -> Refused:
    """Return the refusal (404) of a path without a known kind."""
    return Refused(404, "NotFound", "the server could not find the requested resource")


def not_allowed(method: str) -> Refused:
    message = f"the server does not allow this method on the requested resource: {method}"
    return Refused(405, "MethodNotAllowed", message)


def conflict(resource: str, name: str, why: str = "") -> Refused:
    """Return the refusal (409) of a change to an object that has changed meanwhile."""
    why = why or "the object has been modified; please apply your changes to the latest version and try again"
    return Refused(409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(resource: str, name: str, faults: Sequence[str]) -> Refused:
    """Return the refusal (422) of an invalid object; each fault is a string `path: reason`."""
    told = faults[0] if len(faults) == 1 else f"[{', '.join(faults)}]"
    return Refused(422, "Invalid", f'{resource} "{name}" is invalid: {told}')
