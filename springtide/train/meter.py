"""Where a step's time goes, measured as it passes: a few clock readings a step, sums handed on with the reports.

In: marks from batches.py, step.py and the model's forward. Out: domain/profile.py StepTimings. Next: the link's report.
"""

import time
from collections import deque
from collections.abc import Callable

from springtide.domain import profile

KEPT_STEPS = 4096  # steps kept one by one for a look back (a MiB); sums are kept for ever


class Meter:
    """Clock readings of the step under way, and what became of the steps before."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.steps: deque[profile.StepTiming] = deque(maxlen=KEPT_STEPS)
        self.total = profile.TimingSum()
        self._fresh: list[profile.StepTiming] = []
        self._last_end = self._handed = self._forward_end = clock()
        self._data_s = self._pull_wait_s = self._forward_pull_s = 0.0

    def restart(self) -> None:
        """A pass begins: what lies between it and the last step (an evaluation, say) is not a step's time."""
        self._last_end = self.clock()
        self._data_s = self._pull_wait_s = 0.0

    def data_read(self, seconds: float) -> None:
        """A batch was read and collated."""
        self._data_s += seconds

    def handed_out(self) -> None:
        """The loop gets its batch: forward begins. With accumulation the last batch of a step counts."""
        self._handed = self._forward_end = self.clock()
        self._forward_pull_s = 0.0

    def pull_waited(self, seconds: float) -> None:
        """Rows were not here yet when they were wanted."""
        self._pull_wait_s += seconds
        self._forward_pull_s += seconds

    def forward_done(self) -> None:
        """The model has returned."""
        self._forward_end = self.clock()

    def step_done(
        self,
        *,
        samples: int,
        began: float,
        pull_wait_s: float,
        local_update_s: float,
        server_update_s: float,
        server_lookup_s: float,
        in_flight_s: float,
    ) -> None:
        """`optimizer.step()`, entered at `began`, is about to return.

        `in_flight_s`: how long this step's requests were under way, all in all.
        """
        end = self.clock()
        forward = max(0.0, self._forward_end - self._handed - self._forward_pull_s)
        backward = max(0.0, began - self._forward_end)
        push_wait = max(0.0, end - began - local_update_s - pull_wait_s)
        timing = profile.StepTiming(
            samples=samples,
            total_s=end - self._last_end,
            data_s=self._data_s,
            pull_wait_s=self._pull_wait_s + pull_wait_s,
            forward_s=forward,
            backward_s=backward,
            push_wait_s=push_wait,
            gradient_s=forward + backward,
            update_s=server_update_s + local_update_s,
            synchronization_s=max(0.0, in_flight_s - server_update_s - server_lookup_s),
            lookup_s=server_lookup_s,
        )
        self.steps.append(timing)
        self._fresh.append(timing)
        self._last_end = end
        self._data_s = self._pull_wait_s = self._forward_pull_s = 0.0

    def collect(self) -> profile.TimingSum:
        """Sums over all steps so far; cheap enough for every report."""
        if self._fresh:
            self.total = self.total + profile.summed(self._fresh)
            self._fresh.clear()
        return self.total
