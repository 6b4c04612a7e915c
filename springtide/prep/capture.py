"""The ladder: from a model and a call to a graph of it, by the first way that works.

In: a model and batches as it was called with. Rungs: torch.export; then dynamo's first graph (prep/dynamo_rung.py);
then marked functions (prep/marked.py). A rung that does not hold gives its reason and the user's line. Out: `Captured`.
Next: prep/split.py tries what comes after on it.
"""

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from springtide.prep import captured, leaves, standins
from springtide.prep import unread as unreading
from springtide.prep.captured import Captured, State
from springtide.prep.explain import Refusal
from springtide.prep.guard import Guard, TensorKind, relation
from springtide.prep.statefulness import Refused

log = logging.getLogger(__name__)

EXPORT = "torch.export"
UNTRACED = "torch cannot trace this line"
MARK = "a function of yours that depends on its arguments alone moves if you mark it @springtide.stateless"
ON_VALUES = ("data-dependent", "Data-dependent", "Data dependent", "nonzero", ".item()", "scalar value")
"""Words of torch's errors for a program whose course depends on the values of tensors."""


@dataclass(frozen=True, slots=True)
class Given:
    """Leaves that are no tensors, in their places. torch looks into lists that modules hold, and not into this."""

    leaves: tuple[Any, ...]


class Flat(nn.Module):
    """A model that is called with tensors alone: other leaves are part of it, and outputs come as leaves."""

    def __init__(self, model: nn.Module, given: Sequence[Any], shape: leaves.Shape, unread: dict[int, str]) -> None:
        super().__init__()
        self.model = model
        fixed = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in given]
        self.given = Given(tuple(unreading.put(fixed, unread))) if unread else fixed
        self.at = [number for number, leaf in enumerate(given) if isinstance(leaf, torch.Tensor)]
        self.shape = shape
        self.train(model.training)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Tensors of what the model gives for these. Hooks on the model itself are called by whoever calls it."""
        every = list(self.given.leaves if isinstance(self.given, Given) else self.given)
        for at, tensor in zip(self.at, tensors, strict=True):
            every[at] = tensor
        args, kwargs = self.shape.rebuild(every)
        out, _ = leaves.flatten(self.model.forward(*args, **kwargs))
        return tuple([one for one in out if isinstance(one, torch.Tensor)])


class Call:
    """One call of the model: its leaves, and how arguments are made of them."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.leaves, self.shape = leaves.flatten((args, kwargs))
        self.args, self.kwargs = args, kwargs

    @property
    def size(self) -> int:
        """How much is in it."""
        return sum(leaf.numel() for leaf in self.leaves if isinstance(leaf, torch.Tensor))

    @property
    def tensors(self) -> dict[int, torch.Tensor]:
        """Leaves that are tensors, by number."""
        return {number: leaf for number, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)}


def by_export(
    model: nn.Module,
    calls: Sequence[Call],
    given: Any,
    whole: dict[str, nn.Module],
    *,
    changed: Set[str] = frozenset(),
    unread: dict[int, str] | None = None,
) -> Captured:
    """One rung: the whole forward by torch.export, in train mode, for any batch size. Raises what torch raises.

    `given` is what forward returned for the first call: its structure and what of it is no tensor. `changed` are paths
    of buffers that are known to be written. `unread` are leaves that forward must not read, each with what is said
    if it does.
    """
    call = calls[0]
    tensors = call.tensors
    if not tensors:
        raise Refused(f"model(...) is given no tensor, and torch traces nothing else; {MARK}")
    dims = tuple(_dims(number, calls) for number in tensors)
    unread = unread or {}
    flat = Flat(model, call.leaves, call.shape, unread)
    quiet = contextlib.redirect_stderr(io.StringIO())  # torch prints graphs that it gives up
    with warnings.catch_warnings(), standins.standing_in(list(whole.values())), quiet:
        warnings.simplefilter("ignore")
        program = torch.export.export(flat, tuple(tensors.values()), dynamic_shapes=(dims,), strict=False)
        mutated = set(changed) | _mutated(program, changed)
    found = _captured(model, program, call, given, whole, mutated, EXPORT)
    found.guard.unread = {number: type(call.leaves[number]) for number in unread}
    found.guard.fixed = {number: leaf for number, leaf in found.guard.fixed.items() if number not in unread}
    return found


def _mutated(program: ExportedProgram, known: Set[str]) -> set[str]:
    """Buffers that forward writes. The program itself does not tell (batch_norm is one operation); its functional form
    does. That takes as long as the capture, so it is made only where a buffer is read that is not known to be written.
    """
    read = {node.name for node in program.graph.find_nodes(op="placeholder") if node.users}
    buffers = program.graph_signature.inputs_to_buffers
    if {buffers[name].removeprefix("model.") for name in buffers if name in read} <= known:
        return set()
    functional = program.run_decompositions({})
    return {path.removeprefix("model.") for path in functional.graph_signature.buffers_to_mutate.values()}


def _dims(number: int, calls: Sequence[Call]) -> dict[int, Any]:
    """The first dimension may vary, and any other that does between the batches at hand."""
    shapes = [call.leaves[number].shape for call in calls if isinstance(call.leaves[number], torch.Tensor)]
    vary = {
        at
        for at in range(len(shapes[0]))
        if at == 0 or any(len(shape) != len(shapes[0]) or shape[at] != shapes[0][at] for shape in shapes)
    }
    return {at: Dim.AUTO if at in vary else Dim.STATIC for at in range(len(shapes[0]))}


def _captured(
    model: nn.Module,
    program: ExportedProgram,
    call: Call,
    given: Any,
    whole: dict[str, nn.Module],
    mutated: set[str],
    rung: str,
) -> Captured:
    states: dict[str, State] = {}
    ours: dict[str, int] = {}
    numbers = list(call.tensors)
    for spec in program.graph_signature.input_specs:
        name, path = spec.arg.name, (spec.target or "").removeprefix("model.")
        if spec.kind is InputKind.USER_INPUT:
            ours[name] = numbers[len(ours)]
        elif spec.kind is InputKind.PARAMETER:
            states[name] = captured.find_state(model, path, "parameter")
        elif spec.kind is InputKind.BUFFER:
            states[name] = captured.find_state(model, path, "buffer")
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            states[name] = _constant(model, path or name, program.constants[spec.target or ""])
        else:
            raise TypeError(f"forward() uses {spec.kind.name.lower()} {path}, which cannot be sent")
    graph_module = program.graph_module
    written = {name for name, state in states.items() if state.path in mutated}
    graph_module.graph.eliminate_dead_code(
        lambda node: node.is_impure() or any(one.name in written for one in node.all_input_nodes)
    )
    return Captured(
        rung=rung,
        module=graph_module,
        leaves=ours,
        states=states,
        guard=_guard(program, call, ours),
        tables=list(whole.values()),
        table_paths=list(whole),
        rebuild=rebuilding(given),
        mutated=written,
    )


def rebuilding(given: Any) -> Callable[[Sequence[Any]], Any]:
    """From the tensors of an output to the output, like the one given."""
    parts, shape = leaves.flatten(given)
    fixed = [None if isinstance(part, torch.Tensor) else (part,) for part in parts]

    def rebuild(tensors: Sequence[Any]) -> Any:
        rest = iter(tensors)
        return shape.rebuild([next(rest) if part is None else part[0] for part in fixed])

    return rebuild


def _constant(model: nn.Module, path: str, value: torch.Tensor) -> State:
    """A tensor that is no buffer: an attribute of a module, watched there, or one that forward makes itself."""
    for module_path, module in model.named_modules():
        for name, held in vars(module).items():
            if isinstance(held, torch.Tensor) and held.data_ptr() == value.data_ptr() and held.shape == value.shape:
                return State("constant", f"{module_path}.{name}" if module_path else name, held, module, name)
    return State("constant", path, value)


def _guard(program: ExportedProgram, call: Call, ours: dict[str, int]) -> Guard:
    ranges = {str(symbol): bounds for symbol, bounds in program.range_constraints.items()}
    shown = {
        ours[node.name]: node.meta["val"]
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in ours
    }  # fmt: skip
    assumed: list[str] = getattr(program, "_guards_code", None) or []
    return guard_of(call, shown, ranges, [mine for text in assumed if (mine := relation(text)) is not None])


def guard_of(call: Call, shown: dict[int, Any], ranges: dict[str, Any], assumed: Sequence[str]) -> Guard:
    """What must hold of leaves that a tracer saw as `shown`, tensors some of whose sizes are symbols."""
    tensors: dict[int, TensorKind] = {}
    relations: list[str] = []
    symbols: dict[str, str] = {}
    for number, fake in shown.items():
        sizes, least = [], []
        for at, size in enumerate(fake.shape):
            name = str(size)
            sizes.append(int(name) if name.isdigit() else None)  # a symbol that was found to be one number is fixed
            bounds = ranges.get(name)
            least.append(2 if bounds is None else int(bounds.lower))
            if sizes[-1] is None and name in symbols:
                relations.append(f"t[{len(tensors)}].size()[{at}] == {symbols[name]}")
            symbols.setdefault(name, f"t[{len(tensors)}].size()[{at}]")
        tensors[number] = TensorKind(call.leaves[number].dtype, tuple(sizes), tuple(least))
    fixed = {number: leaf for number, leaf in enumerate(call.leaves) if not isinstance(leaf, torch.Tensor)}
    return Guard(len(call.leaves), tensors, fixed, tuple(dict.fromkeys([*relations, *assumed])))


def refusal(rung: str, error: BaseException, tracers: Sequence[str] = ()) -> Refusal:
    """Why a rung did not hold, with the user's line that stopped it. Of `tracers`, errors are for the log only."""
    line, text = "", ""
    one: BaseException | None = error
    while one is not None and not line:
        for frame in reversed(traceback.extract_tb(one.__traceback__)):
            if captured.is_users(frame.filename) and frame.lineno is not None:
                line, text = captured.place(frame.filename, frame.lineno)
                break
        one = one.__cause__ or one.__context__
    told = captured.users_line(str(error))
    if told[0]:
        line, text = told
    log.debug("%s did not hold", rung or "forward()", exc_info=error)
    return Refusal(
        rung=rung, why=_untraced(error, text) if rung in tracers else _first_words(error), line=line, text=text
    )


def _untraced(error: BaseException, text: str) -> str:
    """Why a tracer has given up, as a user can use it. The forward itself runs: its own errors came before."""
    said = f"{type(error).__name__} {error}"
    if "numpy" in said or "np." in text:
        return f"{UNTRACED}, since it calls NumPy; {MARK}"
    if any(word in said for word in ON_VALUES):
        return f"{UNTRACED}, since it depends on values of a tensor; {MARK}"
    return f"{UNTRACED if text else 'torch cannot trace forward()'}; {MARK}"


def _first_words(error: BaseException) -> str:
    error = getattr(error, "inner_exception", error)  # what a back end of dynamo's raised, which says no more itself
    said = str(error).strip().split("\n")
    first = next((part.strip() for part in said if part.strip()), "")
    return f"{type(error).__name__}: {first[:300]}" if first else type(error).__name__


def graph_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Operations of a graph in order, without placeholders and output."""
    return [node for node in graph.nodes if node.op not in ("placeholder", "output")]
