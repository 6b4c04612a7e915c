"""Faults of an API server, for tests: refusals, conflicts, delays, old lists, lost replies.

In: a test says what is to go wrong, how often, and for whom. Out: `http` asks before each request. Calls come from the
test's thread, questions from the server's: each is one step under a lock.
"""

import threading
from dataclasses import dataclass, field

from springtide_lab.kubernetes.api import status_errors

EVER = 1 << 60


@dataclass(slots=True)
class Fault:
    """One thing that goes wrong for the next `times` requests that fit."""

    code: int = 0
    """The answer; 0: it is only late, or old."""
    verbs: tuple[str, ...] = ()
    resource: str = ""
    """`pods`, `pods/status`, `elasticjobs`; empty: any."""
    times: int = 1
    retry_after_s: float | None = None
    delay_s: float = 0.0
    behind: int = 0
    """A list answers with the state before so many changes."""
    after: bool = False
    """The request is done, and only its answer is lost."""

    def fits(self, verb: str, resource: str) -> bool:
        return self.times > 0 and (not self.verbs or verb in self.verbs) and self.resource in ("", resource)


@dataclass(slots=True)
class Faults:
    """What goes wrong now. All of it may be called at any time, from any thread."""

    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(
        self,
        code: int,
        *,
        times: int = 1,
        verbs: tuple[str, ...] = (),
        resource: str = "",
        retry_after_s: float | None = None,
        after: bool = False,
    ) -> None:
        """Answer with 409, 429 (with Retry-After), 500, 503, ... instead; with `after`, once it has been done."""
        self._add(
            Fault(code=code, times=times, verbs=verbs, resource=resource, retry_after_s=retry_after_s, after=after)
        )

    def slow(self, delay_s: float, *, times: int = EVER, verbs: tuple[str, ...] = (), resource: str = "") -> None:
        self._add(Fault(delay_s=delay_s, times=times, verbs=verbs, resource=resource))

    def stale(self, resource: str, *, behind: int = 1, times: int = 1) -> None:
        """Answer lists with an older state, as a server that lags behind its peers does."""
        self._add(Fault(behind=behind, times=times, verbs=("list",), resource=resource))

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, verb: str, resource: str) -> list[Fault]:
        """What happens to this request; each counts as used."""
        with self._lock:
            found = [each for each in self._faults if each.fits(verb, resource)]
            refusing = next((each for each in found if each.code), None)
            found = [each for each in found if not each.code or each is refusing]
            for each in found:
                each.times -= 1
            self._faults = [each for each in self._faults if each.times > 0]
            return found

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)


FAULT_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def fault_refusal(fault: Fault, resource: str, name: str) -> status_errors.Refused:
    if fault.code == 409:
        return status_errors.conflict(resource, name)
    reason = FAULT_REASONS.get(fault.code, "Unknown")
    return status_errors.Refused(
        fault.code, reason, f"{reason}: a fault asked for by the test", retry_after_s=fault.retry_after_s
    )
