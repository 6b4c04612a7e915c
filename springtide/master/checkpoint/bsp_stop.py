"""Takes checkpoints of a bsp group: the lowest rank pauses after a step until the slots are copied.

In: `AtStep` of that rank, once its dense parameters and optimizers are on the servers. Out: an ordinary round of
`master.checkpoint.schedule`, with the ledger as of that step.

Why the checkpoint is exact: no rank can complete the next step without the paused rank, unless a new group forms. The
master controls both the release of the rank and the formation of groups. A part that arrives after a new group formed
does not count (`master.checkpoint.round`). So every slot is copied after this step and before the next step.
"""

import logging

from springtide.master.checkpoint.schedule import CheckpointSchedule
from springtide.master.core.context import MasterContext
from springtide.rpc.messages import messages

log = logging.getLogger(__name__)


class BspCheckpoints:
    """Checkpoints of a bsp group at a step, on the master's side."""

    def __init__(self, context: MasterContext, rounds: CheckpointSchedule) -> None:
        self._record, self._rounds, self._changed, self._clock = context.record, rounds, context.changed, context.clock

    def due(self, *, last: bool = False) -> int:
        """Return the number of the checkpoint for which the group should pause, by time or at its end; 0 if none is
        due.
        """
        state = self._record.state
        return self._rounds.saving.due_at_step(self._record, self._clock(), last=last) if state.bsp.in_step else 0

    async def reached(self, said: messages.AtStep) -> messages.Ok | messages.WaitReply:
        """Begin a checkpoint while the group waits after a step. The reply lets it continue; `WaitReply` means
        not now.
        """
        saving, state = self._rounds.saving, self._record.state
        if said.last:
            await self._changed.until(lambda: saving.round is None or state.phase.over)
            if saving.last is not None and saving.last.progress.step == said.step:
                return messages.Ok()
        # otherwise the request is outdated
        if saving.round is None and (said.last or said.number == self.due(last=True)):
            self._rounds.begin_at_step(said)
        if saving.round is None:
            return messages.WaitReply()
        number = saving.round.order.number

        def copied() -> bool:
            now = saving.round
            if now is None or now.order.number != number or state.phase.over:
                return True
            return now.publishing and not said.last

        await self._changed.until(copied)
        return messages.Ok()
