"""A model's forward in two parts: what data workers can do, and what the trainer must.

In: the model and batches that it was called with. The ladder of prep/capture.py is climbed until a rung holds: captured
(capture), run once to see what it does (observing), divided by state (statefulness), cut (cut), made into programs
(stages, rest), and compared with the user's own forward on all batches at hand (verify). Out: `Split`, or `Unsplit`
with the reason; either way nothing of the user's has changed. Called by: train/splitting.py.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from springtide.prep import capture, costs, cut, observing, stages, standins, statefulness, telling, verify
from springtide.prep.capture import Call
from springtide.prep.captured import Captured
from springtide.prep.explain import Explanation, Refusal
from springtide.prep.rest import Rest
from springtide.prep.stage import Stage
from springtide.prep.staleness import Watch
from springtide.prep.statefulness import Refused
from springtide.prep.untouched import Untouched, hooks, untouched


@dataclass(frozen=True, slots=True)
class Split:
    """A forward in two parts."""

    stages: tuple[Stage, ...]
    """The first takes the list of the model's input leaves, each the list that the one before made; the last one's list
    crosses. None instead of a list: this batch is not of the kind that was captured, run the model's own forward."""
    rest: Callable[[Sequence[Any], Sequence[Any]], Any]
    """(crossing, leaves) -> what forward returns; of the leaves only those in `needs` are read."""
    needs: frozenset[int]
    """Numbers of the input leaves that `rest` reads."""
    explanation: Explanation
    digest: str
    """Equal on every worker that captured the same program and cut it alike."""
    watch: Watch

    def stale(self) -> str:
        """Empty, or what has changed in the model since, so that crossing values are no longer right."""
        return self.watch.changed()

    def crossing(self, leaves: Sequence[Any]) -> list[Any] | None:
        """All stages, in this process."""
        made: Any = list(leaves)
        for stage in self.stages:
            made = None if made is None else stage.run(made)
        return None if made is None else list(made)


@dataclass(frozen=True, slots=True)
class Unsplit:
    """A forward that stays whole, and why."""

    explanation: Explanation


Rung = Callable[[], Split]


def split(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    more: Sequence[tuple[tuple[Any, ...], dict[str, Any]]] = (),
    opaque: tuple[type, ...] = (),
    label: stages.Label | None = None,
) -> Split | Unsplit:
    """Split forward as it runs now, in the mode that the model is in.

    `more` are further calls, on which the split is verified; a last, smaller batch among them is worth having. `opaque`
    are types of modules that stay whole, beside tables. `label` names the device of a node, where that is not what it
    ran on.
    """
    calls = sorted((Call(*one) for one in ((args, kwargs), *more)), key=lambda call: -call.size)
    whole = standins.tables(model, opaque)
    why = _unfit(model, calls, whole)
    if why:
        return Unsplit(Explanation(why=why))
    with untouched(model, list(whole.values())) as before:
        return _climb(model, calls, whole, before, label)


def _unfit(model: nn.Module, calls: Sequence[Call], whole: dict[str, nn.Module]) -> str:
    if any(leaf.requires_grad for call in calls for leaf in call.tensors.values()):
        return "an input of the model requires grad, which would have to flow back to data workers"
    if type(model).__name__ == "OptimizedModule":
        return "the model is compiled (torch.compile): its forward is not the user's own"
    hooked = hooks(model, list(whole.values()))
    if hooked:
        return f"{hooked} would not be called"
    return ""


def _climb(
    model: nn.Module,
    calls: Sequence[Call],
    whole: dict[str, nn.Module],
    before: Untouched,
    label: stages.Label | None,
) -> Split | Unsplit:
    """Rung by rung; the first whose split is verified is taken."""
    refusals: list[Refusal] = []
    calls, own, failed = verify.own_runs(model, calls, whole, before)
    if not calls:
        return Unsplit(Explanation(why=f"forward() itself failed: {capture.refusal('', failed).why}" if failed else ""))
    if own.written:
        return Unsplit(Explanation(why=f"forward() writes attributes of modules: {', '.join(own.written[:3])}"))
    trial = _Trial(model, calls, whole, before, own, label)
    for name, rung in trial.rungs():
        try:
            made = rung()
        except Refused as error:
            refusals.append(telling.refused(name, error))
            if error.final:
                return Unsplit(Explanation(why=str(error), refusals=tuple(refusals)))
        except Exception as error:
            refusals.append(capture.refusal(name, error))
        else:
            if made.explanation.moved:
                return replace(made, explanation=replace(made.explanation, refusals=tuple(refusals)))
            refusals.append(Refusal(rung=name, why=made.explanation.why))
            nothing = replace(made.explanation, refusals=tuple(refusals[:-1]))
            if name == capture.LOOSE:  # a whole program in which nothing may move: no other rung finds more
                return Unsplit(nothing)
        finally:
            before.rewind_tensors()
            before.rewind_chance()
    why = f"no way to capture forward() held; the last: {refusals[-1].why}"
    return Unsplit(Explanation(why=why, refusals=tuple(refusals)))


@dataclass(slots=True)
class _Trial:
    """One model and its calls, to be captured by one rung or another."""

    model: nn.Module
    calls: Sequence[Call]
    whole: dict[str, nn.Module]
    before: Untouched
    own: verify.Own
    label: stages.Label | None

    def rungs(self) -> list[tuple[str, Rung]]:
        """Names and ways, the best first."""
        return [
            (capture.LOOSE, lambda: self.exported(strict=False)),
            (capture.STRICT, lambda: self.exported(strict=True)),
        ]

    def exported(self, *, strict: bool) -> Split:
        """torch.export's graph of the whole forward, divided."""
        given = self.own.outputs[0]
        return self.divided(capture.by_export(self.model, self.calls, given, self.whole, strict=strict))

    def divided(self, program: Captured) -> Split:
        """A captured program in two parts, verified."""
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
        device_of = lambda node: seen.nodes[node.name].device  # noqa: E731
        made = stages.build(program, sides, going, crossing, self.label or device_of, device_of) if moved else ()
        rest = Rest(program, sides, stay, crossing, device_of)
        shipped = [program.states[node.name] for node in stages.constants_of(moved, sides)]
        watch = Watch(self.model, list(self.whole.values()), shipped)
        explanation = telling.tell(program, seen, sides, chosen, moved, made, self.own.seconds, shipped)
        found = Split(made, rest, rest.needs, explanation, _digest(made, rest, shipped), watch)
        if not moved:
            return found
        verified = verify.compare(self.model, found, self.calls, self.own, self.whole, self.before)
        return replace(found, explanation=replace(explanation, verified=verified))


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
        told.update(
            state.path.encode()
            + state.value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    return told.hexdigest()[:32]
