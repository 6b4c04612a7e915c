"""`python -m springtide_lab.bench NAME [--json] [--quick]`: the same as `springtide bench`, without the command
line.
"""

import argparse
import pathlib
import sys

from springtide import errors
from springtide_lab import bench


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m springtide_lab.bench", description="Ours and peers in one run.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(bench.BENCHES))
    parser.add_argument("--all", action="store_true", help="every benchmark in turn")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs, proves nothing")
    parser.add_argument("--out", type=pathlib.Path, help="folder for plots")
    given = parser.parse_args(arguments)
    names = list(bench.BENCHES) if given.all else given.names
    if not names:
        parser.error(f"which? one or more of {', '.join(bench.BENCHES)}, or --all")
    try:
        for name in names:
            bench.run(name, json=given.json, quick=given.quick, out=given.out)
    except errors.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
