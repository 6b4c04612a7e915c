"""One model and its calls, captured by one rung or another, divided, made into programs, and verified.

In: prep/split.py climbs. Each rung: captured, run once to see what it does (observing), divided by state
(statefulness), cut (cut), made into programs (stages, rest), compared with the user's own forward (verify).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from springtide.prep import capture, costs, cut, dynamo_rung, marked, observing, stages, standins, statefulness, telling
from springtide.prep import verify as verifying
from springtide.prep.capture import Call
from springtide.prep.captured import Captured
from springtide.prep.explain import Group, Refusal
from springtide.prep.parts import Split
from springtide.prep.rest import Rest
from springtide.prep.stage import Stage
from springtide.prep.staleness import Watch
from springtide.prep.untouched import Untouched

Rung = Callable[[Sequence[Refusal]], Split]
"""Is given what the rungs before have said."""


@dataclass(slots=True)
class Trial:
    """All that a rung needs."""

    model: nn.Module
    calls: Sequence[Call]
    whole: dict[str, nn.Module]
    before: Untouched
    own: verifying.Own
    label: stages.Label | None
    unread: dict[int, str]
    """Leaves that no tracer may read (prep/unread.py)."""

    def rungs(self) -> list[tuple[str, Rung]]:
        """Names and ways, the best first. Those that read bytecode would look at what must not be read."""
        reading = [(capture.STRICT, lambda _: self.exported(strict=True)), (dynamo_rung.NAME, self.begun)]
        return [
            (capture.LOOSE, lambda _: self.exported(strict=False)),
            *([] if self.unread else reading),
            (marked.NAME, lambda _: self.by_marks()),
        ]

    def exported(self, *, strict: bool) -> Split:
        """torch.export's graph of the whole forward, divided."""
        given, changed = self.own.outputs[0], self.own.changed
        program = capture.by_export(
            self.model, self.calls, given, self.whole, strict=strict, changed=changed, unread=self.unread
        )
        return self.divided(program, None)

    def begun(self, refusals: Sequence[Refusal]) -> Split:
        """Dynamo's first graph, divided; what comes after it runs as dynamo lets it."""
        first = dynamo_rung.First(self.model, self.whole)
        made = self.divided(first.capture(self.calls), first)
        told = made.explanation
        stopped = refusals[-1] if refusals else None
        after = Group(
            line=stopped.line if stopped else "",
            text=stopped.text if stopped else "",
            operations=("all that follows",),
            why="a break in dynamo's graph",
        )
        inputs = sum(marked.weight(leaf) for leaf in self.calls[0].leaves)
        sent = sum(marked.weight(one) for one in made.crossing(self.calls[0].leaves) or ())
        why = f"{told.why}; all inputs travel too, for dynamo's guards"
        told = replace(told, stayed=(*told.stayed, after), raw_bytes=inputs, cut_bytes=inputs + sent, why=why)
        return replace(made, explanation=told)

    def by_marks(self) -> Split:
        """Calls of functions that the user has marked."""
        with standins.standing_in(list(self.whole.values())):
            making, answering = marked.listen(self.model, self.calls[0])
        made = Stage("forward-0", making)
        watch = Watch(self.model, list(self.whole.values()), [])
        given = self.calls[0].leaves
        told = marked.tell(making, 0, 0, self.own.seconds)
        found = Split((made,), answering, frozenset(range(len(given))), told, marked.digest(making), watch)
        found = replace(found, needs=self._really_read(found, making))
        raw, sent = sum(map(marked.weight, given)), sum(map(marked.weight, found.crossing(given) or ()))
        kept = sum(marked.weight(given[number]) for number in found.needs)
        told = replace(told, raw_bytes=raw, cut_bytes=sent + kept)
        return replace(found, explanation=replace(told, verified=self._verified(found)))

    def _really_read(self, found: Split, making: marked.Making) -> frozenset[int]:
        """Inputs that forward reads by itself too: it is run without those that marked functions take."""
        taken = {one.number for call in making.calls for one in call.arguments if one.kind == "leaf"}
        needs = found.needs
        for number in sorted(taken):
            fewer = replace(found, needs=needs - {number})
            try:
                verifying.compare(self.model, fewer, self.calls[:1], self.own, self.whole, self.before)
            except Exception:
                needs = needs | {number}
            else:
                needs = fewer.needs
        return needs

    def divided(self, program: Captured, first: dynamo_rung.First | None) -> Split:
        """A captured program in two parts, verified. `first`: it is no more than the beginning of forward."""
        program.mutated |= {name for name, state in program.states.items() if state.path in self.own.changed}
        seen = observing.observe(program, self.calls[0].leaves)
        sides = statefulness.divide(program, seen)
        chosen = cut.choose(costs.values(program, seen, sides))
        nodes = {node.name: node for node in program.graph.nodes}
        moved = [node for node in program.graph.nodes if node.name in chosen.moved]
        crossing = [nodes[name] for name in chosen.crossing if name not in program.leaves]
        checked = _checks_of(moved, sides, program)
        going = [node for node in program.graph.nodes if node in {*moved, *checked}]
        here = {*going, *sides.free, *sides.checks}
        stay = [node for node in capture.graph_nodes(program.graph) if node not in here]
        needs = lambda node: seen.nodes[node.name].device  # noqa: E731
        lies = lambda node: seen.nodes[node.name].lies  # noqa: E731
        made = stages.build(program, sides, going, crossing, self.label or needs, lies) if moved else ()
        rest = Rest(program, sides, stay, crossing, lies)
        shipped = [program.states[node.name] for node in stages.constants_of(moved, sides)]
        watch = Watch(self.model, list(self.whole.values()), shipped)
        told = telling.tell(program, seen, sides, chosen, moved, made, self.own.seconds, shipped)
        digest = _digest(made, rest, shipped)
        if first is None:
            found = Split(made, rest, rest.needs, told, digest, watch)
        else:
            every = frozenset(range(len(self.calls[0].leaves)))
            found = Split(made, first.completed(rest, self.calls[0].shape), every, told, digest, watch)
        return replace(found, explanation=replace(told, verified=self._verified(found))) if moved else found

    def _verified(self, found: Split) -> int:
        return verifying.compare(self.model, found, self.calls, self.own, self.whole, self.before)


def _checks_of(moved: Sequence[fx.Node], sides: statefulness.Sides, program: Captured) -> set[fx.Node]:
    """Assertions that need nothing but what moves: they go along."""
    have = {*moved, *sides.free, *(node for node in program.graph.nodes if node.name in program.leaves)}
    found: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node in sides.checks and node not in sides.free and all(one in have for one in node.all_input_nodes):
            found.add(node)
            have.add(node)
    return found


def _digest(made: Sequence[Stage], rest: Rest, shipped: Sequence[Any]) -> str:
    told = hashlib.sha256(rest.source.encode())
    for stage in made:
        run: Any = stage.run
        told.update(f"{stage.device} {run.takes} {run.program.source}".encode())
    for state in shipped:
        flat = state.value.detach().cpu().contiguous().reshape(-1)
        told.update(state.path.encode() + flat.view(torch.uint8).numpy().tobytes())
    return told.hexdigest()[:32]
