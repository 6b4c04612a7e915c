"""Keeps a process running beside a job, such as an exporter or an experiment tracker.

The process ends by itself when its standard input closes, because its work is done or its parent was killed.
"""

import asyncio
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

from springtide import config
from springtide.telemetry import logs

AGAIN_S = 5.0  # seconds before a dead process is restarted
LAST_S = 120.0  # most seconds for the last work, after the end of the job


class SideProcess:
    """`python -m MODULE` with its arguments in the environment, because arguments may contain credentials.

    A dead process is restarted. `log` gets the output of the process. With `say`, the lines of its standard output are
    messages for the user instead.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: pathlib.Path,
        *,
        environment: Mapping[str, str] | None = None,
        say: Callable[[str], None] | None = None,
        last_s: float = LAST_S,
    ) -> None:
        self.command = [sys.executable, "-m", module]
        self.arguments, self._log, self._say, self._last_s = list(arguments), log, say, last_s
        self._environment = dict(environment or {})
        self._stopping = False
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def begun(self) -> bool:
        return self._task is not None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def end(self) -> None:
        self._stopping = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._task is not None:
            try:
                await asyncio.wait_for(self._task, self._last_s)
            except TimeoutError:
                if self._process is not None and self._process.returncode is None:
                    self._process.kill()
                    await self._process.wait()

    async def _keep(self) -> None:
        while not self._stopping:
            with logs.open_log(self._log) as out:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE if self._say else out,
                    stderr=out,
                    start_new_session=True,
                    env={**config.with_arguments(self.arguments), **self._environment},
                )
            if self._say and self._process.stdout is not None:
                async for line in self._process.stdout:
                    self._say(line.decode(errors="replace").rstrip())
            await self._process.wait()
            if not self._stopping:
                await asyncio.sleep(AGAIN_S)
