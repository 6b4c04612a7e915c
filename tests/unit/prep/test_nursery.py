"""The process that data workers are forked off: it ends with its loader, and the package with it."""

import os
import socket

from springtide.prep import nursery, package


def test_a_loader_that_died_with_news_unread_leaves_no_package(tmp_path, monkeypatch):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = tmp_path / "package"
    folder.mkdir()

    def load(*_, **__):
        nursery.send(theirs, nursery.Ended(0, 0))
        ours.close()  # the kernel resets a connection that is closed with something unread

    monkeypatch.setattr(package, "load", load)
    monkeypatch.setattr(os, "_exit", lambda status: None)
    nursery.send(ours, nursery.Begin(str(folder), b"s" * 32, 0))
    with theirs:
        nursery.main(os.dup(theirs.fileno()))
    assert not folder.exists()
