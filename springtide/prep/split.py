"""A model's forward in two parts: what data workers can do, and what the trainer must.

In: the model and batches that it was called with. The ladder is climbed until a rung holds: each captures the program
(capture, dynamo_rung, marked), divides it and compares it with the user's own forward on all batches at hand (trial).
Out: `Split`, or `Unsplit` with the reason; either way nothing of the user's has changed. Called by: train/splitting.py.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from springtide.prep import capture, dynamo_rung, marked, stages, standins, telling, unread, verify
from springtide.prep.capture import Call
from springtide.prep.explain import Explanation, Refusal
from springtide.prep.parts import Split, Unsplit
from springtide.prep.statefulness import Refused
from springtide.prep.trial import Trial
from springtide.prep.untouched import Untouched, hooks, untouched

__all__ = ["FORWARD_FAILED", "Split", "Unsplit", "confirm", "split"]

FORWARD_FAILED = "forward() itself failed"
ANY = "any tracer"


def split(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    more: Sequence[tuple[tuple[Any, ...], dict[str, Any]]] = (),
    opaque: tuple[type, ...] = (),
    label: stages.Label | None = None,
    known: Sequence[Refusal] = (),
) -> Split | Unsplit:
    """Split forward as it runs now, in the mode that the model is in.

    `more` are further calls, on which the split is verified; a last, smaller batch among them is worth having. `opaque`
    are types of modules that stay whole, beside tables. `label` names the device of a node, where that is not what it
    ran on. `known`: what rungs have said elsewhere, which are not tried again.
    """
    calls = _calls(args, kwargs, more)
    whole = standins.tables(model, opaque)
    why = _unfit(model, calls, whole)
    if why:
        return Unsplit(Explanation(why=why))
    with untouched(model, list(whole.values())) as before:
        return _climb(model, calls, whole, before, label, known)


def confirm(
    model: nn.Module,
    found: Split,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    more: Sequence[tuple[tuple[Any, ...], dict[str, Any]]] = (),
) -> Split:
    """A split that was found elsewhere or before, verified on the model as it is; `Refused` if it does not hold."""
    calls = _calls(args, kwargs, more)
    whole = standins.tables(model, ())
    if why := _unfit(model, calls, whole) or found.stale():
        raise Refused(why)
    with untouched(model, list(whole.values())) as before:
        calls, own, failed = verify.own_runs(model, calls, whole, before)
        if failed is not None and not calls:
            raise Refused(f"{FORWARD_FAILED}: {failed}")
        held = verify.compare(model, found, calls, own, whole, before)
    return replace(found, explanation=replace(found.explanation, verified=held))


def _calls(
    args: tuple[Any, ...], kwargs: dict[str, Any], more: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]
) -> list[Call]:
    """The largest first: it is what programs are captured with."""
    return sorted((Call(*one) for one in ((args, kwargs), *more)), key=lambda call: -call.size)


def _unfit(model: nn.Module, calls: Sequence[Call], whole: dict[str, nn.Module]) -> str:
    if any(leaf.requires_grad for call in calls for leaf in call.tensors.values()):
        return "an input of the model requires grad, which would have to flow back to data workers"
    if any(call.shape != calls[0].shape for call in calls):
        return "the model is called with arguments of another structure from batch to batch"
    if type(model).__name__ == "OptimizedModule":
        return "the model is compiled (torch.compile): its forward is not the user's own"
    hooked = hooks(model, list(whole.values()))
    return f"{hooked} would not be called" if hooked else ""


def _climb(
    model: nn.Module,
    calls: Sequence[Call],
    whole: dict[str, nn.Module],
    before: Untouched,
    label: stages.Label | None,
    known: Sequence[Refusal],
) -> Split | Unsplit:
    """Rung by rung; the first whose split is verified is taken."""
    calls, own, failed = verify.own_runs(model, calls, whole, before)
    if not calls:
        return Unsplit(Explanation(why=f"{FORWARD_FAILED}: {capture.refusal('', failed).why}" if failed else ""))
    trial = Trial(model, calls, whole, before, own, label, unread.varying([call.leaves for call in calls]))
    refusals = [*_unfit_for_tracing(own), *known]
    refused = {one.rung for one in known}
    whole_program: Explanation | None = None
    for name, rung in trial.rungs():
        traced = name != marked.NAME
        if name in refused or (traced and (whole_program is not None or any(one.rung == ANY for one in refusals))):
            continue  # in a program that was captured whole no other tracer finds more
        began = time.process_time()
        try:
            made = rung(refusals)
        except Refused as error:
            refusals.append(telling.refused(name, error))
            if error.final:
                return Unsplit(Explanation(why=str(error), refusals=tuple(refusals)))
        except unread.Read as error:
            refusals.append(replace(capture.refusal(ANY, error), why=str(error)))
        except Exception as error:
            refusals.append(capture.refusal(name, error, tracers=(capture.EXPORT, dynamo_rung.NAME)))
        else:
            if made.explanation.moved:
                took_s = time.process_time() - began
                return replace(made, explanation=replace(made.explanation, refusals=tuple(refusals), found_s=took_s))
            whole_program = made.explanation
        finally:
            before.rewind_tensors()
            before.rewind_chance()
    if whole_program is not None:
        return Unsplit(replace(whole_program, refusals=tuple(refusals)))
    return Unsplit(Explanation(why=_last_words(refusals), refusals=tuple(refusals)))


def _unfit_for_tracing(own: verify.Own) -> list[Refusal]:
    """What no tracer keeps, found before one is tried."""
    if not own.written:
        return []
    why = f"forward() writes attributes of modules: {', '.join(own.written[:3])}"
    return [Refusal(rung=ANY, why=why)]


def _last_words(refusals: Sequence[Refusal]) -> str:
    first = next((one for one in refusals if one.rung != marked.NAME), refusals[0])
    at = f" ({first.line}: {first.text})" if first.line else ""
    return f"no way to capture forward() held: {first.why}{at}"
