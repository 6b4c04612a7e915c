"""`springtide init`: writes a starter project that runs.

In: a folder. Out: the files of `starter/` (a script, a reader of data, a spec, a test) and generated data.
"""

import pathlib
import random
from typing import Annotated

import typer

from springtide import errors
from springtide.cli.common.options import verb

STARTER = pathlib.Path(__file__).with_name("starter")
DATA, SAMPLES = "clicks.csv", 2000


@verb("springtide init", "springtide init clicks")
def init(
    folder: Annotated[str, typer.Argument(help="Folder to write to; created if missing.")] = ".",
) -> int:
    """Write a starter project: train.py, clicks.py (a data reader), job.yaml, test_train.py and some data.

    No file is replaced: if one of them exists, nothing is written.
    """
    where = pathlib.Path(folder)
    files = {path.stem: path.read_text() for path in sorted(STARTER.glob("*.txt"))} | {DATA: generated_clicks()}
    if found := sorted(name for name in files if (where / name).exists()):
        raise errors.BadInput(
            f"{where / found[0]} exists, and init replaces no file; give a new folder: springtide init NAME"
        )
    try:
        where.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (where / name).write_text(text)
    except OSError as error:
        raise errors.BadInput(f"cannot write {where}: {error.strerror or error}; give another folder") from None
    inside = "" if where == pathlib.Path() else f"cd {folder} && "
    print(f"wrote {', '.join(sorted(files))} to {where}")
    print(f"next:  {inside}python train.py         train in one process")
    print(f"       {inside}springtide run train.py  train as a job")
    return 0


def generated_clicks() -> str:
    """Users click on items of their own kind, with a few exceptions: something to learn."""
    draw = random.Random(0)
    lines = ["user,item,click"]
    for _ in range(SAMPLES):
        user, item = draw.randrange(100), draw.randrange(60)
        click = (user % 3 == item % 3) != (draw.random() < 0.05)
        lines.append(f"user-{user},item-{item},{int(click)}")
    return "\n".join(lines) + "\n"
