"""Rows of one job: Fig. 13's walk, Tables 3 and 4 as arithmetic, and what is measured elsewhere or not at all here.

In: models, and what benches have published. Out: `Row`s. Next: `reproduction`.
"""

import pathlib

from springtide_lab.reproduce.goldminer.cluster import walk
from springtide_lab.reproduce.goldminer.jobs import MODELS
from springtide_lab.reproduce.report import BENCHES, NOT_IN_TEXT, Row, goal_row, missing, published, published_goal, row

PRICE = 8.9
"""A machine with 8 GPUs costs so much as one without (section 5.2)."""
VIRTUAL = (
    "in virtual time, by the code that tunes real jobs; that 18 cores feed the GPU is chosen, that a trainer needs 3 "
    "is by Fig. 13 itself"
)
LINEAR = (
    "cores taken as linear: 12 for data workers a GPU against 8 in one process, of 18 and 21; what 8 GPUs fetch then, "
    "37 Gb/s, is more than a machine's 20"
)
OWN_SPEED = "arithmetic on the paper's own speed-up and prices"
PUBLISHED = (
    ("dataworkers", "vs_dataset_split", "002 Fig. 10", "over a split at the data set's end", "1.4-1.6"),
    ("dataworkers", "vs_ideal", "002 Fig. 9", "speed, of ideal", ">= 0.83"),
    ("dataworkers", "overhead_when_cheap", "002 Table 2", "where preprocessing is cheap, time over none", "1-1.127"),
)
FUSED = {
    "a core each": "fused messages over one a tensor, a core for the trainer",
    "half a core": "fused messages over one a tensor, half a core for the trainer",
}
WALK = (
    ("data_workers", "data workers at the end", 3),
    ("data_worker_cpu", "cores of a data worker at the end", 8),
    ("trainer_cpu", "cores of the trainer at the end", 3),
)


def rows(folder: pathlib.Path = BENCHES) -> list[Row]:
    return [
        *ratios(),
        *walked(),
        *_really_walked(folder),
        *costs(),
        *(published_goal(folder, *case) for case in PUBLISHED),
        *_fused(folder),
        *left_out(),
    ]


def ratios() -> list[Row]:
    """Fig. 1: what was chosen, and what it means with 8 cores."""
    found = [
        row("002 Fig. 1", f"{one.name}: cores a GPU", NOT_IN_TEXT, [one.ratio], why=f"{one.name}: {one.source}")
        for one in MODELS.values()
    ]
    slowest = max(1 - one.alone(8) for one in MODELS.values())
    linear = "cores are taken to be linear; the paper's recommendation models hardly use a second core in one process"
    return [*found, row("002 Fig. 1", "largest slow-down with 8 cores", "> 0.9", [slowest], why=linear)]


def walked() -> list[Row]:
    """Fig. 13 in virtual time."""
    path = walk(MODELS["ResNet18"])
    end = path.end
    least = min(one.trainer_cpu for one in path.stands)
    return [
        row("002 Fig. 13", "simulated: data workers at the end", 3, [float(end.data_workers)], why=VIRTUAL),
        row("002 Fig. 13", "simulated: cores of a data worker", 8, [end.data_worker_cpu]),
        row("002 Fig. 13", "simulated: cores of the trainer", 3, [end.trainer_cpu], goal=3, better="lower"),
        row("002 Fig. 13", "simulated: the trainer was tried with", 2, [least]),
        row(
            "002 Fig. 13",
            "simulated: speed over that without data workers",
            NOT_IN_TEXT,
            [end.speed / path.stands[0].speed],
        ),
    ]


def _really_walked(folder: pathlib.Path) -> list[Row]:
    """Fig. 13 with real processes, as far as it is published."""
    run = published(folder / "dataworkers-walk.json")
    command = "`springtide bench dataworkers-walk --json`"
    if run is None:
        why = f"{command} walks it with real processes; nothing of it is published here"
        return [missing("002 Fig. 13", "real processes", "3 x 8 cores, trainer of 3", why)]
    known = run.get("details", {})
    core = f", a core being {known['cpu']:g} of the machine's" if "cpu" in known else ""
    why = (
        f"{command} of {run['date']}: real processes held by control groups{core}; a job with preprocessing of its own"
    )
    found = [
        row("002 Fig. 13", f"real processes: {what}", paper, [float(known[name])], why=why)
        for name, what, paper in WALK
        if name in known
    ]
    for goal in run.get("goals", []):
        if goal.get("value") is not None:
            found.append(goal_row("002 Fig. 13", f"real processes: {goal['id']}", NOT_IN_TEXT, goal, why))
    return found


def _fused(folder: pathlib.Path) -> list[Row]:
    """Fig. 12, as far as it is published: the trainer's cores are the paper's axis, a machine's two are ours."""
    run, command = published(folder / "transfer.json"), "`springtide bench transfer --json`"
    gains = (run or {}).get("details", {}).get("fused_vs_singly", {})
    if run is None or not gains:
        why = f"{command} measures it; nothing of it is published here"
        return [missing("002 Fig. 12", "fused messages over one a tensor", "1.25-1.3", why)]
    why = f"{command} of {run['date']}: 141 tensors, really trained and sent"
    paper = {"a core each": 1.25, "half a core": 1.3}
    return [
        row("002 Fig. 12", what, paper[name], [float(gains[name])], why=why)
        for name, what in FUSED.items()
        if name in gains
    ]


def costs() -> list[Row]:
    """Tables 3 and 4: what is saved, from the paper's speed-ups; and ResNet18's speed-up from the ratios."""
    found = []
    for name, machines, faster, paper in (("ResNet18", 1, 1.2, 0.09), ("DeepFM", 4, 12.1, 0.88)):
        saved = 1 - (1 + machines / PRICE) / faster
        found.append(
            row("002 Table 3", f"{name}: cost saved, {machines} extra CPU machines", paper, [saved], why=OWN_SPEED)
        )
    model = MODELS["ResNet18"]
    found.append(
        row("002 Table 3", "ResNet18: speed-up by linear cores", 1.2, [model.fed(12) / model.alone(8)], why=LINEAR)
    )
    for kind, extra, faster, paper in (
        ("single", 1, 0.74, -0.70),
        ("single", 2, 1.13, -0.33),
        ("single", 4, 1.43, -0.40),
        ("multi", 1, 1.43, 0.13),
        ("multi", 2, 1.43, -0.049),
        ("multi", 4, 1.43, -0.40),
    ):
        saved = 1 - (4 + extra) / 4 / faster
        found.append(row("002 Table 4", f"{kind}-stage, 4 + {extra} GPUs: cost saved", paper, [saved], why=OWN_SPEED))
    return found


def left_out() -> list[Row]:
    return [
        missing("002 Fig. 3", "machines with free GPUs and no free cores", 0.31, "a production trace of 5,600 GPUs"),
        missing("002 Fig. 4", "of queueing, for want of cores", 0.392, "a production trace of 5,600 GPUs"),
        missing("002 Fig. 11", "Production, GPU stage: speed-up", 1.43, "a model of a customer, on 4 A10 GPUs"),
    ]
