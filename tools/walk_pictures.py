#!/usr/bin/env python3
"""Draw docs/design/walk-*.svg: the modules that a sample and a scaling decision pass, in order.

tests/architecture/test_walks.py holds each list against the tree: every module exists, and each is tied to its
`after` by an import, or by the class `by` that both of them name.
"""

import html
import pathlib
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "design"
COLUMNS = 3
WIDTH, HEIGHT, GAP_X, GAP_Y = 306, 58, 34, 26
MARGIN = 14
COLOURS = {
    "worker": "#dbeafe",
    "rpc": "#e5e7eb",
    "master": "#fef3c7",
    "data": "#dcfce7",
    "embedding": "#dcfce7",
    "planning": "#fae8ff",
    "brain": "#fae8ff",
    "job": "#fef3c7",
    "platforms": "#ffe4e6",
    "cpp": "#e5e7eb",
}


class Stop(NamedTuple):
    """One module of a walk, what happens there, and what ties it to an earlier one."""

    module: str
    what: str
    after: str = ""
    """The previous module on the walk."""
    by: str = ""
    """A class that both modules name; empty: one of them imports the other."""


SAMPLE = (
    Stop("worker.job", "the script asks for batches"),
    Stop("worker.input.lease_prefetch", "leases shards ahead of need", "worker.job"),
    Stop("worker.link.clients", "LeaseRequest to the master", "worker.input.lease_prefetch", by="LeaseAnswer"),
    Stop("worker.link.master_link", "one link to the master", "worker.link.clients"),
    Stop("rpc.transport.channel", "requests, retried", "worker.link.master_link"),
    Stop("rpc.transport.connection", "frames over TCP or TLS", "rpc.transport.channel"),
    Stop("rpc.transport.listener", "the master's end", "rpc.transport.connection"),
    Stop("master.dispatcher", "journal before reply", "rpc.transport.listener"),
    Stop("master.handlers", "one table a kind of member", "master.dispatcher"),
    Stop("master.data.leases", "grants, journal first", "master.handlers", by="LeaseRequest"),
    Stop("master.core.record", "what the journal restores", "master.dispatcher"),
    Stop("data.ledger.job_ledger", "books of all samples", "master.core.record"),
    Stop("data.ledger.passes", "one pass over the data", "data.ledger.job_ledger"),
    Stop("data.ledger.async_ledger", "who holds which shard", "data.ledger.passes"),
    Stop("worker.link.lease_tracker", "leases that this worker holds", "worker.link.clients"),
    Stop("worker.input.batch_plan", "a batch with its identity", "worker.link.lease_tracker"),
    Stop("worker.input.feeds", "reads batches, ahead of the loop", "worker.input.batch_plan"),
    Stop("worker.input.batches", "batches for the loop", "worker.input.batch_plan"),
    Stop("data.source", "samples of the data set", "worker.input.feeds"),
    Stop("worker.step.step", "forward, backward, push", "worker.input.batch_plan"),
    Stop("embedding.lookup.lookup", "ids to rows and back", "worker.step.step"),
    Stop("embedding.lookup.row_batch", "rows and gradients of a batch", "embedding.lookup.lookup"),
    Stop("embedding.lookup.table_client", "pull and push", "embedding.lookup.lookup"),
)
SAMPLE_END = ("C++: client, wire, server, store", "rows are trained once")
DECISION = (
    Stop("worker.link.progress", "times steps, reports with a heartbeat"),
    Stop("worker.link.master_link", "one link to the master", "worker.link.progress"),
    Stop("master.dispatcher", "picks the handler by message", "worker.link.master_link", by="Heartbeat"),
    Stop("master.parts", "all parts of a master", "master.dispatcher"),
    Stop("master.autoscale.loop", "asks for advice when due", "master.parts"),
    Stop("master.autoscale.profiler", "sums timings up by shape", "master.autoscale.loop"),
    Stop("planning.perf_model.profiles", "timings of one shape", "master.autoscale.profiler"),
    Stop("master.autoscale.job_view", "what a policy may see", "master.autoscale.loop"),
    Stop("brain.service.advisers", "the job's own brain, or a served one", "master.autoscale.loop"),
    Stop("planning.policy.registry", "the policy by its name", "brain.service.advisers"),
    Stop("planning.policy.springtide_policy", "stages of one decision", "planning.policy.registry"),
    Stop("planning.lifecycle.stages", "start, measure, steady", "planning.policy.springtide_policy"),
    Stop("planning.perf_model.fit", "fits coefficients", "planning.policy.springtide_policy"),
    Stop("planning.perf_model.equations", "speed of a shape", "planning.perf_model.fit"),
    Stop("planning.allocate.bids", "shapes that a job would pay for", "planning.policy.springtide_policy"),
    Stop("planning.candidates.pareto", "shapes worth having", "planning.allocate.bids"),
    Stop("planning.allocate.choose", "one shape a job", "planning.policy.springtide_policy"),
    Stop("planning.allocate.knapsack", "within the quota", "planning.allocate.choose"),
    Stop("planning.policy.acceptance", "is it worth the change?", "master.autoscale.loop"),
    Stop("job.scaling.plan", "the next move of the plan", "master.autoscale.loop"),
    Stop("job.state", "roles as they should be", "job.scaling.plan"),
    Stop("platforms.agent.agent", "polls the master for orders", "master.dispatcher", by="AgentOrders"),
    Stop("platforms.agent.reconcile", "what to start and stop", "platforms.agent.agent"),
    Stop("platforms.local.platform", "starts and stops processes", "platforms.agent.agent", by="RoleLaunch"),
)
WALKS = {"sample": (SAMPLE, SAMPLE_END), "decision": (DECISION, None)}
TITLES = {"sample": "A sample, from the script to its rows", "decision": "A decision, from a step's time to a process"}


def picture(name: str) -> str:
    """The SVG of one walk: boxes in reading order, row by row, with arrows from each to the next."""
    stops, end = WALKS[name]
    boxes = [(stop.module, stop.what) for stop in stops]
    if end is not None:
        boxes.append(end)
    rows = -(-len(boxes) // COLUMNS)
    width = 2 * MARGIN + COLUMNS * WIDTH + (COLUMNS - 1) * GAP_X
    height = 40 + 2 * MARGIN + rows * HEIGHT + (rows - 1) * GAP_Y
    title = html.escape(TITLES[name])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" role="img">',
        f"<title>{title}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#6b7280"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="30" font-size="18" font-weight="bold">{title}</text>',
    ]
    for number, (module, what) in enumerate(boxes):
        x, y = place(number)
        colour = COLOURS["cpp" if module.startswith("C++") else module.partition(".")[0]]
        label = html.escape(module if module.startswith("C++") else module.replace(".", "/"))
        parts += [
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7" fill="{colour}" stroke="#6b7280"/>',
            f'<text x="{x + 10}" y="{y + 24}" font-size="13" font-weight="bold">{number + 1}. {label}</text>',
            f'<text x="{x + 10}" y="{y + 44}" font-size="12" fill="#374151">{html.escape(what)}</text>',
        ]
        if number:
            parts.append(arrow(number - 1, number))
    return "\n".join([*parts, "</svg>", ""])


def place(number: int) -> tuple[int, int]:
    """The upper left corner of a box: rows go right and left in turn, so that arrows stay short."""
    row, column = divmod(number, COLUMNS)
    column = COLUMNS - 1 - column if row % 2 else column
    return MARGIN + column * (WIDTH + GAP_X), 40 + MARGIN + row * (HEIGHT + GAP_Y)


def arrow(source: int, target: int) -> str:
    (x1, y1), (x2, y2) = place(source), place(target)
    if y1 == y2:
        ends = (x1 + WIDTH, y1 + HEIGHT // 2, x2, y2 + HEIGHT // 2)
        if x2 < x1:
            ends = (x1, y1 + HEIGHT // 2, x2 + WIDTH, y2 + HEIGHT // 2)
    else:
        ends = (x1 + WIDTH // 2, y1 + HEIGHT, x2 + WIDTH // 2, y2)
    begin_x, begin_y, end_x, end_y = ends
    line = f'<line x1="{begin_x}" y1="{begin_y}" x2="{end_x}" y2="{end_y}"'
    return f'{line} stroke="#6b7280" stroke-width="1.5" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    for name in WALKS:
        (FOLDER / f"walk-{name}.svg").write_text(picture(name))
