"""Compare the AUC of undisturbed training with training during which workers and servers are added, killed and removed.

In: WideDeep, or xDeepFM, on a generated click log, with several seeds. Out: `auc_difference` of the means;
`lost_or_repeated`, from an extra table that counts how often each sample was trained.
"""

import math
import pathlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.job_spec import JobPhase, JobSpec
from springtide.testing.cluster import LocalCluster
from springtide.zoo import demo
from springtide_lab.bench import Options
from springtide_lab.bench.core import harness, jobs, report

MOST_DIFFERENCE = 0.0006
"""Largest accepted difference of AUC. In all experiments of DLRover (section 6.2), xDeepFM's AUC stayed within
0.0006."""
WORKERS, SERVERS = 2, 2

SCRIPT = """
import sys
import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
import springtide as st
from springtide.zoo import demo
from springtide.zoo.metrics import StreamingAUC

torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[3]))
job = st.join()
train, test = demo.log(int(sys.argv[2]), folder=sys.argv[1])
model = demo.CountedModel(demo.model(sys.argv[4]))
optimizers = [
    torch.optim.Adagrad(model.model.parameters(), lr=demo.LEARNING_RATE),
    torch.optim.SGD(model.seen.parameters(), lr=1.0),
]
model, optimizers, batches = job.prepare(model, optimizers, train, batch_size=demo.BATCH)
for x, y in batches:
    for optimizer in optimizers:
        optimizer.zero_grad()
    (binary_cross_entropy_with_logits(model(x), y) + model.count(x)).backward()
    for optimizer in optimizers:
        optimizer.step()
if job.rank == 0 and not job.leaving:
    model.eval()
    auc = StreamingAUC()
    with torch.no_grad():
        for part in np.array_split(np.arange(len(test)), max(1, len(test) // 4096)):
            x, y = test.batch(part)
            auc.update(y, model(x))
    count = demo.compare(model.state_dict()["seen.weight"], train)
    job.report(test_auc=auc.value(), lost=count.lost, repeated=count.repeated)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Results of one training run."""

    auc: float
    lost: int
    repeated: int
    seconds: float
    done: tuple[str, ...] = ()
    """Descriptions of the disturbances during the run."""


Act = Callable[[LocalCluster], object]
ACTS: Sequence[tuple[float, str, Act]] = (
    (0.1, "3 workers, 3 servers", lambda job: job.scale(3, servers=3)),
    (0.35, "worker-1 killed", lambda job: job.kill("worker-1")),
    (0.5, "server-1 killed", lambda job: job.kill("server-1")),
    (0.7, "2 workers, 1 server", lambda job: job.scale(2, servers=1)),
)
"""Disturbances: share of the samples after which it happens, description, action."""


def bench(options: Options) -> report.Result:
    return compare(options, "widedeep")


def xdeepfm(options: Options) -> report.Result:
    """Compare the AUC of xDeepFM with and without disturbances, as `bench auc` does for WideDeep."""
    return compare(options, "xdeepfm")


def compare(options: Options, model: str) -> report.Result:
    seeds, samples = (range(2), 60_000) if options.quick else (range(5), demo.SAMPLES)
    found: dict[str, list[Trained]] = {"undisturbed": [], "disturbed": []}
    with harness.scratch() as folder:
        demo.log(samples, folder=folder / "clicks")
        for seed in harness.track("seeds", seeds):
            for kind in list(found) if seed % 2 == 0 else reversed(list(found)):
                found[kind].append(trained(folder, model, samples, seed, ACTS if kind == "disturbed" else ()))
    return judge(found, model, samples)


def trained(
    folder: pathlib.Path, model: str, samples: int, seed: int, acts: Sequence[tuple[float, str, Act]]
) -> Trained:
    spec = JobSpec(
        name=f"auc-{seed}-{'disturbed' if acts else 'undisturbed'}",
        workers=WORKERS,
        servers=SERVERS,
        seed=seed,
        checkpoints=CheckpointRules(every_s=3.0),
        backoff_s=0.0,
    )
    done = []
    with jobs.prepared(folder, SCRIPT, [folder / "clicks", samples, seed, model], spec) as job:
        for part, what, act in acts:
            if not reached(job, part * 0.9 * samples):
                break
            act(job)
            done.append(what)
        status = jobs.finished(job)
    told = status.training.metrics
    return Trained(
        auc=told["test_auc"],
        lost=round(told["lost"]),
        repeated=round(told["repeated"]),
        seconds=status.elapsed_s,
        done=tuple(done),
    )


def reached(job: LocalCluster, samples: float) -> bool:
    """Wait until `samples` samples are trained; return False if the job ends or drains earlier."""
    over = (JobPhase.DRAINING, JobPhase.FINISHED, JobPhase.FAILED, JobPhase.STOPPED)
    try:
        status = job.until(lambda now: now.samples >= samples or now.phase in over, within_s=600.0)
    except AssertionError:
        return False
    return status.phase not in over


def judge(found: dict[str, list[Trained]], model: str, samples: int) -> report.Result:
    calm, disturbed = found["undisturbed"], found["disturbed"]
    pairs = [after.auc - before.auc for before, after in zip(calm, disturbed, strict=True)]
    difference = abs(statistics.mean(pairs))
    by_chance = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.nan
    counted = sum(one.lost + one.repeated for some in found.values() for one in some)
    incomplete = [one for one in disturbed if len(one.done) < len(ACTS)]
    why = f"{len(incomplete)} runs ended before all disturbances" if incomplete else ""
    every = [one.auc for some in found.values() for one in some]
    return report.Result(
        goals=(
            report.goal(
                "auc_difference", None if incomplete else difference, target=MOST_DIFFERENCE, better="lower", why=why
            ),
            report.goal("lost_or_repeated", float(counted), target=0.0, better="lower"),
        ),
        rounds=len(pairs),
        columns=("seed", "undisturbed", "disturbed", "difference"),
        rows=(
            *(
                (str(seed), f"{one.auc:.5f}", f"{other.auc:.5f}", f"{other.auc - one.auc:+.5f}")
                for seed, (one, other) in enumerate(zip(calm, disturbed, strict=True))
            ),
            (
                "mean",
                *(f"{statistics.mean(one.auc for one in some):.5f}" for some in (calm, disturbed)),
                f"{statistics.mean(pairs):+.5f}",
            ),
        ),
        notes=(
            f"{model}, {samples:,} generated clicks of which a tenth is for the test, {WORKERS} workers, {SERVERS} "
            f"servers; disturbed: {'; '.join(what for _, what, _ in ACTS)}",
            f"the difference is {difference:.5f}, one deviation of a mean of {len(pairs)} pairs {by_chance:.5f}; all "
            f"runs lie within {max(every) - min(every):.5f}",
            f"{counted} samples lost or repeated, in all runs together",
        ),
        details={
            "undisturbed": [one.auc for one in calm],
            "disturbed": [one.auc for one in disturbed],
            "difference": statistics.mean(pairs),
            "deviation_of_mean": None if math.isnan(by_chance) else by_chance,
            "range": max(every) - min(every),
            "samples": samples,
            "range_undisturbed": max(one.auc for one in calm) - min(one.auc for one in calm),
            "seconds": {kind: [round(one.seconds, 1) for one in some] for kind, some in found.items()},
        },
    )
