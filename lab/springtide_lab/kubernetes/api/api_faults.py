"""Inject faults into the API server: refusals, conflicts, delays, old lists, lost replies.

In: calls from the test's thread. Out: the faults for each request; `http` takes them in the server's thread.
"""

import http
import threading
from dataclasses import dataclass, field
from typing import Any

from springtide_lab.kubernetes.api.status_errors import Refused

EVER = 1 << 60


@dataclass(slots=True)
class Fault:
    """A fault for the next `times` requests that match."""

    code: int = 0
    """Status code of the answer; 0 means a normal answer that is delayed or outdated."""
    verbs: tuple[str, ...] = ()
    resource: str = ""
    """Resource of the matching requests, such as `pods`, `pods/status` or `elasticjobs`; empty matches any resource."""
    times: int = 1
    retry_after_s: float | None = None
    delay_s: float = 0.0
    behind: int = 0
    """Number of changes by which the answer to a list is out of date."""
    after: bool = False
    """True if the server carries out the request and only its answer is lost."""

    def fits(self, verb: str, resource: str) -> bool:
        return self.times > 0 and (not self.verbs or verb in self.verbs) and self.resource in ("", resource)

    def refusal(self) -> Refused:
        reason = http.HTTPStatus(self.code).phrase.replace(" ", "")
        return Refused(self.code, reason, f"{reason}: requested by the test", retry_after_s=self.retry_after_s)


@dataclass(slots=True)
class Faults:
    """Active faults. All methods may be called at any time, from any thread."""

    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(self, code: int, *, times: int = 1, **of: Any) -> None:
        """Answer the matching requests with this status code, such as 409 or 503; `of` sets fields of `Fault`."""
        self._add(Fault(code=code, times=times, **of))

    def slow(self, delay_s: float, *, times: int = EVER, **of: Any) -> None:
        self._add(Fault(delay_s=delay_s, times=times, **of))

    def stale(self, resource: str, *, behind: int = 1, times: int = 1) -> None:
        """Answer lists with an older state, like a server that lags behind its peers."""
        self._add(Fault(behind=behind, times=times, verbs=("list",), resource=resource))

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def take(self, verb: str, resource: str) -> list[Fault]:
        """Return the faults for this request, and count each of them as used."""
        with self._lock:
            found = [fault for fault in self._faults if fault.fits(verb, resource)]
            refusing = next((each for each in found if each.code), None)
            found = [each for each in found if not each.code or each is refusing]
            for each in found:
                each.times -= 1
            self._faults = [fault for fault in self._faults if fault.times > 0]
            return found

    def _add(self, fault: Fault) -> None:
        with self._lock:
            self._faults.append(fault)
