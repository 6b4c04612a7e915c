"""One model and its calls, captured by one rung or another, divided, made into programs, and verified.

In: prep/split.py climbs. Each rung: captured, run once to see what it does (observing), divided by state
(statefulness), cut (cut), made into programs (stages, rest), compared with the user's own forward (verify).
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from springtide.prep import (
    capture,
    costs,
    cut,
    dynamo_rung,
    hearing,
    marked,
    observing,
    seen_inside,
    stages,
    standins,
    statefulness,
    telling,
)
from springtide.prep import verify as verifying
from springtide.prep.capture import Call
from springtide.prep.captured import Captured
from springtide.prep.explain import Group, Refusal
from springtide.prep.parts import Split
from springtide.prep.rest import Rest
from springtide.prep.stage import Stage
from springtide.prep.staleness import Watch
from springtide.prep.statefulness import Refused
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
        return [
            (capture.EXPORT, lambda _: self.exported()),
            *([] if self.unread else [(dynamo_rung.NAME, self.begun)]),
            (marked.NAME, lambda _: self.by_marks()),
        ]

    def exported(self) -> Split:
        """torch.export's graph of the whole forward, divided."""
        given, changed = self.own.outputs[0], self.own.changed
        if kind := seen_inside.unknown(given):
            raise Refused(f"forward() returns a {kind}, which only forward() itself can make")
        program = capture.by_export(self.model, self.calls, given, self.whole, changed=changed, unread=self.unread)
        return self.divided(program)

    def begun(self, refusals: Sequence[Refusal]) -> Split:
        """Dynamo's first graph, divided; the trainer runs forward as it is, and what crossed answers for its calls."""
        made = self.divided(dynamo_rung.capture_first(self.model, self.whole, self.calls), begins=True)
        told = made.explanation
        stopped = refusals[-1] if refusals else None
        after = Group(
            line=stopped.line if stopped else "",
            text=stopped.text if stopped else "",
            operations=("all that follows",),
            why="a break in dynamo's graph",
        )
        why = f"{told.why}; inputs that forward() itself reads travel too" if made.needs else told.why
        return replace(made, explanation=replace(told, stayed=(*told.stayed, after), why=why))

    def by_marks(self) -> Split:
        """Calls of functions that the user has marked."""
        with standins.standing_in(list(self.whole.values())):
            making, answering = marked.listen(self.model, self.calls[0])
        made = Stage("forward-0", making)
        watch = Watch(self.model, list(self.whole.values()), [])
        every = frozenset(range(len(self.calls[0].leaves)))
        taken = {one.number for call in making.calls for one in call.arguments if one.kind == "leaf"}
        told = marked.tell(making, 0, 0, self.own.seconds)
        found = self._without(taken, Split((made,), answering, every, told, marked.digest(making), watch))
        return replace(found, explanation=replace(found.explanation, verified=self._verified(found)))

    def _without(self, taken: Iterable[int], found: Split) -> Split:
        """The user's own forward, given only what it reads by itself: it is run without what moved calls take."""
        given = self.calls[0].leaves
        for number in sorted(taken):
            fewer = replace(found, needs=found.needs - {number})
            found = fewer if self._does(fewer) else found
        raw, sent = sum(map(marked.weight, given)), sum(map(marked.weight, found.crossing(given) or ()))
        kept = sum(marked.weight(given[number]) for number in found.needs)
        return replace(found, explanation=replace(found.explanation, raw_bytes=raw, cut_bytes=sent + kept))

    def _does(self, found: Split) -> bool:
        """Whether its forward gives the same with what it is given."""
        try:
            verifying.compare(self.model, found, self.calls[:1], self.own, self.whole, self.before)
        except Exception:  # whatever comes of a leaf that is not there
            return False
        return True

    def divided(self, program: Captured, *, begins: bool = False) -> Split:
        """A captured program in two parts, verified. `begins`: it is no more than the beginning of forward."""
        program.mutated |= {name for name, state in program.states.items() if state.path in self.own.changed}
        seen = observing.observe(program, self.calls[0].leaves)
        sides = statefulness.divide(program, seen)
        chosen = cut.choose(costs.values(program, seen, sides))
        nodes = {node.name: node for node in program.graph.nodes}
        moved = [node for node in program.graph.nodes if node.name in chosen.moved]
        crossing = [nodes[name] for name in chosen.crossing if name not in program.leaves]
        crossing = hearing.audible(crossing) if begins else crossing
        checked = _checks_of(moved, sides, program)
        going = [node for node in program.graph.nodes if node in {*moved, *checked}]
        here = {*going, *sides.free, *sides.checks}
        stay = [node for node in capture.graph_nodes(program.graph) if node not in here]
        needs = lambda node: seen.nodes[node.name].device  # noqa: E731
        lies = lambda node: seen.nodes[node.name].lies  # noqa: E731
        made = stages.build(program, sides, going, crossing, self.label or needs, lies) if moved else ()
        shipped = [program.states[node.name] for node in stages.constants_of(moved, sides)]
        watch = Watch(self.model, list(self.whole.values()), shipped)
        told = telling.tell(program, seen, sides, chosen, moved, made, self.own.seconds, shipped)
        if begins:
            digest = _digest(made, program.module.code, shipped)
            found = Split(made, self.model.forward, frozenset(range(len(self.calls[0].leaves))), told, digest, watch)
            found = self._answered(found, program, crossing, lies) if moved else found
        else:
            rest = Rest(program, sides, stay, crossing, lies)
            found = Split(made, rest, rest.needs, told, _digest(made, rest.source, shipped), watch)
        return (
            replace(found, explanation=replace(found.explanation, verified=self._verified(found))) if moved else found
        )

    def _answered(
        self, found: Split, program: Captured, crossing: Sequence[fx.Node], lies: Callable[[fx.Node], str]
    ) -> Split:
        """The same stages, for the user's own forward."""
        answering = hearing.find(
            self.model,
            self.calls,
            [found.crossing(call.leaves) for call in self.calls],
            [hearing.Wanted.of(node) for node in crossing],
            [one for name, one in program.states.items() if one.kind == "buffer" and name not in program.mutated],
            standins.standing_in(list(self.whole.values())),
            [lies(node) for node in crossing],
        )
        self.before.rewind_tensors()
        self.before.rewind_chance()
        return self._without(answering.reads, replace(found, rest=answering))

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


def _digest(made: Sequence[Stage], rest: str, shipped: Sequence[Any]) -> str:
    told = hashlib.sha256(rest.encode())
    for stage in made:
        run: Any = stage.run
        told.update(f"{stage.device} {run.takes} {run.program.source}".encode())
    for state in shipped:
        flat = state.value.detach().cpu().contiguous().reshape(-1)
        told.update(state.path.encode() + flat.view(torch.uint8).numpy().tobytes())
    return told.hexdigest()[:32]
