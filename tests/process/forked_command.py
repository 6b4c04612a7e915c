"""Runs a command in a fork of the session's interpreter with torch: a cold one takes seconds of a core to start.

The fork server of `springtide run` is a fork as well, made before the command begins: a fork of a process that runs a
job would continue that job.
"""

import contextlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading

from springtide import config, fork_server
from springtide.platforms.local import fork_server as client
from springtide.testing.cluster import LocalCluster


def begin(asked):
    """Fork a process that runs the command that it receives from this socket."""
    return LocalCluster.warm.start(__name__, [], {}, asked.fileno(), process_group=os.getpgrp())


class ForkedCommand:
    """A command such as `springtide status` or `python FILE`, with the parts of `subprocess.Popen` that tests need."""

    stdout = stderr = None

    def __init__(self, words, folder, environment, *, out=None):
        """Start it in a folder. Without `out`, a file, its outputs are two pipes."""
        pipes = [os.pipe(), os.pipe()] if out is None else []
        written = [written for _, written in pipes] or [out, out]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self._fork = begin(theirs)
            request = json.dumps([words, str(folder), environment]).encode()
            socket.send_fds(ours, [request], written)
        for _, file in pipes:
            os.close(file)
        if pipes:
            self.stdout, self.stderr = (os.fdopen(read) for read, _ in pipes)
        self.pid, self.returncode = self._fork.pid, None

    def poll(self):
        return self._returned(0)

    def wait(self, timeout=None):
        if self._returned(timeout) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def _returned(self, timeout_s):
        if self.returncode is None and select.select([self._fork.pidfd], [], [], timeout_s)[0]:
            self.returncode = self._fork.wait()
        return self.returncode

    def send_signal(self, number):
        self._fork.send_signal(number)

    def kill(self):
        self._fork.send_signal(signal.SIGKILL)


class SpareServer:
    """A fork that becomes the command's fork server once it is given the socket for requests and the variables."""

    def __init__(self):
        parent = os.getpid()
        self._given, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid:
            given.close()
            return
        self._given.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for file in (1, 2):
            os.dup2(nothing, file)
        environment, files, _, _ = socket.recv_fds(given, fork_server.LARGEST, 1)
        if not environment:  # the command needs none
            os._exit(0)
        os.setpgid(0, 0)
        os.dup2(files[0], 0)
        for file in (*files, nothing, given.detach()):
            os.close(file)
        config.become(json.loads(environment))
        fork_server.main(parent, client.IMPORTS)
        sys.exit()

    def begin(self, asked, environment):
        """Begin to serve; `start_server` of the client."""
        with self._given:
            socket.send_fds(self._given, [json.dumps(environment).encode()], [asked.fileno()])
        return self

    def stand_in(self):
        """Let the command begin with this server, which is ready at once, so that even the first master is a fork."""
        plain = client.ForkServerClient.begin

        def begin(own, environment):
            plain(own, environment)
            select.select([own._asking], [], [], 60.0)

        client.start_server, client.ForkServerClient.begin = self.begin, begin

    def poll(self):
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        os.waitpid(self.pid, 0)


CLIENT = """
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect(chr(0) + sys.argv[1])
socket.send_fds(asked, [json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()], [1, 2])
sys.exit(int(asked.recv(10)) % 256)
"""


@contextlib.contextmanager
def shell_commands(folder):
    """Put commands into a folder that run forked: `springtide ...` and `python FILE ...`."""
    folder.mkdir()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    where = f"springtide-test-{os.getpid()}"
    listener.bind(f"\0{where}")  # a path may be longer than a socket's name can be
    listener.listen()
    script = folder / "client.py"
    script.write_text(CLIENT)
    for name in ("springtide", "python"):
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{script}" "{where}" {name} "$@"\n')
        command.chmod(0o755)
    server = threading.Thread(target=_serve, args=[listener])
    server.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
        listener.close()


def _serve(listener):
    with contextlib.suppress(OSError):  # it is shut down
        while True:
            asked, _ = listener.accept()
            with asked:
                asked.send(str(begin(asked).wait()).encode())


def main():
    with socket.socket(fileno=os.dup(1)) as given:
        request, files, _, _ = socket.recv_fds(given, fork_server.LARGEST, 2)
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
        os.close(file)
    (program, *arguments), folder, environment = json.loads(request)
    config.become(environment)
    os.chdir(folder)
    sys.path[:1] = environment["PYTHONPATH"].split(os.pathsep)
    if program == "python":
        sys.path.insert(0, folder)
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return
    from springtide.cli import app

    if arguments[0] in ("run", "demo"):
        SpareServer().stand_in()
    sys.exit(app.main(arguments))


if __name__ == "__main__":
    main()
