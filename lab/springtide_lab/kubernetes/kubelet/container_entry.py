"""Turn a process into a container on this machine: `python -I -S container_entry.py '{"argv": ...}'`.

In: arguments from `containers`. The container has its own process ids, host name, root folder, volumes, user and
control groups, but the machine's network. Out: the exit code; 128 + signal if a signal ended the command; 128 if the
command could not start. The container ends with its parent.
"""

import ctypes
import json
import os
import signal
import stat
import sys
from typing import Any, NoReturn

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_MOUNTS, NEW_NAME, NEW_USER, NEW_PROCESSES = 0x20000, 0x4000000, 0x10000000, 0x20000000
BIND, RECURSIVE, PRIVATE, MOVE, REMOUNT, NO_SUID, NO_DEVICES = 4096, 16384, 1 << 18, 8192, 32, 2, 4
HERE, ALL_BELOW, READ_ONLY, SET_ATTRIBUTES = -100, 0x8000, 1, 442
DIE_WITH_PARENT = 1
COULD_NOT_START = 128
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    done = LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None)
    check(done, f"mount {source} on {target}")


def make_read_only(path: str) -> None:
    attributes = (ctypes.c_uint64 * 4)(READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    done = LIBC.syscall(SET_ATTRIBUTES, HERE, path.encode(), ALL_BELOW, ctypes.byref(attributes), size)
    check(done, f"make {path} read-only")


def leave_the_machine(wish: dict[str, Any]) -> None:
    """Enter new namespaces; a user other than root needs a user namespace for that."""
    inside, outside = (wish["uid"], wish["gid"]), (os.getuid(), os.getgid())
    flags = NEW_MOUNTS | NEW_NAME | NEW_PROCESSES | (0 if wish["root"] else NEW_USER)
    check(LIBC.unshare(flags), "unshare")
    if not wish["root"]:
        with open("/proc/self/setgroups", "w") as file:
            file.write("deny")
        for name, within, without in (("uid_map", inside[0], outside[0]), ("gid_map", inside[1], outside[1])):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(f"{within} {without} 1")


def build_root(wish: dict[str, Any]) -> None:
    """Build the container's root folder at `wish["at"]` from folders of the machine."""
    at: str = wish["at"]
    mount("none", "/", "", RECURSIVE | PRIVATE)
    mount("tmpfs", at, "tmpfs", NO_SUID | NO_DEVICES, "mode=755")
    for name in sorted(os.listdir("/")):
        here, there = "/" + name, f"{at}/{name}"
        mode = os.lstat(here).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(here), there)
        elif stat.S_ISDIR(mode):
            os.mkdir(there, 0o755)
            if name == "proc":
                continue
            if name == "run":
                mount("tmpfs", there, "tmpfs", NO_SUID | NO_DEVICES, "mode=755")
            elif mode & 0o005 == 0o005:
                mount(here, there, "", BIND | RECURSIVE)
            else:
                open_up(at, here, wish["needed"])
    try:
        mount("proc", f"{at}/proc", "proc")
    except PermissionError:  # inside another container
        mount("/proc", f"{at}/proc", "", BIND | RECURSIVE)
    mount("tmpfs", f"{at}/dev/shm", "tmpfs", NO_SUID | NO_DEVICES, "mode=1777,size=64m")
    mount(wish["hosts"], f"{at}/etc/hosts", "", BIND)


def open_up(at: str, folder: str, needed: list[str]) -> None:
    """From a folder that other users cannot enter, mount only the paths that the interpreter needs."""
    for path in needed:
        if path.startswith(folder + "/") and not os.path.exists(at + path):
            os.makedirs(at + path, 0o755)
            mount(path, at + path, "", BIND | RECURSIVE)


def close_root(wish: dict[str, Any]) -> None:
    for name in os.listdir("/"):
        if name not in ("proc", "dev", "sys", "run") and os.path.ismount("/" + name):
            make_read_only("/" + name)
    for path in ("/", "/run"):
        mount("none", path, "", REMOUNT | READ_ONLY | NO_SUID | NO_DEVICES)


def make_place(path: str) -> None:
    """Create a folder to mount a volume on, without changing the machine's folders."""
    if os.path.isdir(path):
        return
    above = path
    while not os.path.exists(above):
        above = os.path.dirname(above)
    if os.stat(above).st_dev not in (os.stat("/").st_dev, os.stat("/run").st_dev):
        shadow(above)
    os.makedirs(path, 0o755)


def shadow(folder: str) -> None:
    """Replace a folder by an in-memory copy of its first level, so that entries can be added to it."""
    aside = f"/.aside{len(os.listdir('/'))}"
    os.mkdir(aside)
    mount("tmpfs", aside, "tmpfs", NO_SUID | NO_DEVICES, "mode=755")
    for entry in os.scandir(folder):
        there = f"{aside}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), there)
            continue
        if entry.is_dir():
            os.mkdir(there)
        else:
            open(there, "x").close()
        mount(entry.path, there, "", BIND | RECURSIVE)
    mount(aside, folder, "", MOVE)


def mount_volumes(wish: dict[str, Any], handles: list[int]) -> None:
    """Mount each volume at its target. `handles` has the source folders of the volumes, which were opened before the
    root changed."""
    for volume, handle in zip(wish["mounts"], handles, strict=True):
        target = volume["target"]
        if stat.S_ISREG(os.fstat(handle).st_mode):
            make_place(os.path.dirname(target))
            if not os.path.exists(target):
                open(target, "x").close()
        else:
            make_place(target)
        if volume["in_memory"]:
            mount("tmpfs", target, "tmpfs", NO_SUID | NO_DEVICES, "mode=1777")
        else:
            mount(f"/proc/self/fd/{handle}", target, "", BIND)
        if volume["read_only"]:
            make_read_only(target)


def furnish(wish: dict[str, Any]) -> None:
    build_root(wish)
    handles = [os.open(volume["source"], os.O_PATH) for volume in wish["mounts"]]
    os.chroot(wish["at"])
    os.chdir("/")
    mount_volumes(wish, handles)
    for handle in handles:
        os.close(handle)
    if wish["read_only"]:
        close_root(wish)
    name = wish["hostname"].encode()
    check(LIBC.sethostname(name, len(name)), "sethostname")


def become(wish: dict[str, Any]) -> NoReturn:
    for folder in wish["cgroups"]:
        with open(f"{folder}/cgroup.procs", "w") as file:
            file.write("0")
    if not wish.get("join"):
        furnish(wish)
    if wish["root"]:
        os.setgroups(wish["groups"])
        os.setgid(wish["gid"])
        os.setuid(wish["uid"])
    LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
    os.chdir(wish["cwd"])
    os.umask(0o022)
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execvpe(wish["argv"][0], wish["argv"], wish["env"])


def come_in(wish: dict[str, Any]) -> None:
    """Join a running container, as `kubectl exec` does; the next child process runs in it."""
    at = f"/proc/{wish['join']}"
    root = os.open(f"{at}/root", os.O_PATH)
    kinds = ("mnt", "uts", "pid") if wish["root"] else ("user", "mnt", "uts", "pid")
    handles = [os.open(f"{at}/ns/{kind}", os.O_RDONLY) for kind in kinds]
    for handle in handles:
        check(LIBC.setns(handle, 0), "setns")
        os.close(handle)
    os.fchdir(root)
    os.chroot(".")
    os.close(root)


def main() -> None:
    """Start the container, forward signals to it, and exit with its exit code."""
    wish = json.loads(sys.argv[1])
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until the child exists
    try:
        come_in(wish) if wish.get("join") else leave_the_machine(wish)
    except OSError as error:
        sys.stderr.write(f"cannot start the container: {error}\n")
        os._exit(COULD_NOT_START)
    # this descriptor closes when the command starts, which tells the parent of the start
    os.set_inheritable(wish["started"], False)
    child = os.fork()
    if child == 0:
        try:
            LIBC.prctl(DIE_WITH_PARENT, signal.SIGKILL)
            become(wish)
        except OSError as error:
            sys.stderr.write(f"cannot start the container: {error}\n")
            sys.stderr.flush()
            os._exit(COULD_NOT_START)
    os.close(wish["started"])
    for number in FORWARDED:
        signal.signal(number, lambda got, _: os.kill(child, got))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    while True:
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            os._exit(128 + os.WTERMSIG(status))
        if os.WIFEXITED(status):
            os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
