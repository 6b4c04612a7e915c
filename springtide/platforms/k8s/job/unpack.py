"""Runs a role with the code that was submitted: `python -m springtide.platforms.k8s.job.unpack MODULE ARGS...`.

In: `code.tgz` from the job's ConfigMap. A restarted container unpacks it again.
"""

import os
import pathlib
import runpy
import sys
import tarfile

from springtide import errors
from springtide.platforms.k8s.objects import names


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Extract the code; refuse paths outside the folder."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        raise errors.BadInput(f"the job's code in {archive} cannot be unpacked: {error}; submit it again") from None


def run(module: str, arguments: list[str], folder: pathlib.Path) -> None:
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main(arguments: list[str]) -> int:
    home = pathlib.Path(names.CODE_FOLDER)
    try:
        unpack(pathlib.Path(names.ARCHIVE) / names.CODE_ARCHIVE, home)
    except errors.BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    run(arguments[0], arguments[1:], home)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
