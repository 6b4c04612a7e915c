"""Connect a model to its tables: serve its embeddings, place its dense parameters, give every worker the same start.

In: job.py with the user's model and optimizers. Out: Wired, what a loop runs on. Next: worker/step/step.py.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from springtide import _native, config, errors
from springtide.data.source import SampleSource
from springtide.domain.core import validation
from springtide.domain.model import reduction
from springtide.domain.model.cache_rules import CacheRules
from springtide.domain.spec import schema
from springtide.embedding.lookup import compile_guard
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.table_client import Behind, TableClient
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.modules import convert, spec_overrides
from springtide.embedding.modules.served import NOT_PICKLED
from springtide.embedding.modules.table_weight import TableWeight
from springtide.worker import model_outline
from springtide.worker.bsp import allreduce_header, connect, group_state
from springtide.worker.bsp.allreduce import Reducer
from springtide.worker.bsp.batch_order import unsupported
from springtide.worker.bsp.batch_order.dense_sums import OrderedReducer
from springtide.worker.bsp.batch_order.unit_gradients import UnitGradients
from springtide.worker.bsp.batch_order.units import UnitSplitter
from springtide.worker.bsp.group import BspGroup, GroupModel
from springtide.worker.cache import row_cache, stale_cache
from springtide.worker.cache.stale_cache import StaleRowCache
from springtide.worker.input.subset import SourcePicker
from springtide.worker.link import master_link
from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.link.step_timer import StepMeter
from springtide.worker.step import served_dense
from springtide.worker.step.dense_api import Dense
from springtide.worker.step.hyperparams import TableRates
from springtide.worker.step.local_dense import LocalDense
from springtide.worker.step.push_identity import UnsteppedGradients
from springtide.worker.step.served_dense import DenseGroup
from springtide.worker.step.step import TrainingStep

Mode = Literal["alone", "async", "bsp"]


@dataclass(frozen=True, slots=True)
class Wired:
    """A model whose tables are served."""

    model: nn.Module
    optimizers: list[JobOptimizer]
    step: TrainingStep
    ahead: bool
    """Whether the next batch's rows are asked for before this one is trained."""
    copies: StaleRowCache | None = None
    """async: rows that this worker keeps."""
    cutting: UnitSplitter | None = None
    """bsp: hands out batches in units, where gradients are summed in the order of the batch."""


@dataclass(frozen=True, slots=True)
class SharingOptions:
    """What workers may keep of the rows they train and, in a bsp group, do with batches of samples known by number."""

    source: SampleSource
    rules: CacheRules
    unit: int = reduction.BY_RANK
    """Samples at a time, where gradients are summed in the order of the batch."""

    def refuse(self, mode: Mode, model: nn.Module) -> None:
        """BadInput for what cannot be summed in the order of the batch, if it is to be."""
        if self.unit:
            unsupported.refuse_mode(mode, indexed=self.source.samples is not None)
            unsupported.refuse_model(model)

    def in_group(self, mode: Mode) -> bool:
        """Whether batches may be shared out: of what has no numbers, a stream or an IterableDataset, if asked for."""
        asked = self.rules.at_once or not self.rules.auto
        return mode == "bsp" and (self.source.samples is not None or asked)


def wire(
    model: nn.Module,
    own: Sequence[torch.optim.Optimizer],
    mode: Mode,
    to_master: master_link.MasterLink,
    settings: config.Settings,
    meter: StepMeter,
    on_step: Callable[[], None],
    max_staleness: int | None,
    shared: SharingOptions,
) -> Wired:
    """Serve the model's tables, everything else staying what it is."""
    refuse(model, own, max_staleness)
    shared.refuse(mode, model)
    copied = stale_cache.for_async(shared.rules, max_staleness=max_staleness) if mode == "async" else None
    client = client_of(to_master, settings, cache_of(shared, mode, copied))
    meter.spent = connect.spending(client)
    served = tables_of(model, client, settings)
    rates = TableRates(own, served)
    groups = dense_groups(model, own, [table.weight for table in served])
    client.declare([table.spec for table in served])
    assign = functools.partial(assign_tables, client, served)
    group, sharing, reducer = None, None, None
    lookups = client.lookups or Lookups(client)
    if copied is not None:
        copied.keep(served)
    if mode == "async":
        placed: Dense = serve_dense(client, model, groups, rates, to_master, max_staleness)
        once(to_master, "springtide: first weights of tables", assign)
    else:
        named = [member for each in groups for member in each.members]
        reducer = reducer_of(named, served, ordered=bool(shared.unit)) if mode == "bsp" else None
        placed = LocalDense(named, reducer, own)
        if reducer is None:
            assign()
        else:
            group_state.declare(client)
            held = GroupModel(model, list(own), lambda: [tensor for _, tensor in state_tensors(model)], assign)
            group = BspGroup(to_master, client, held, reducer)
            if shared.in_group(mode):
                rules = row_cache.for_model(shared.rules, model)
                welcome, unit = to_master.join(), max(1, shared.unit)
                sharing = row_cache.share_out(
                    rules, shared.source, lookups, served, reducer, group, meter, welcome, unit
                )
    model_outline.tell(to_master, model_outline.outline(model, served, placed, state_tensors(model) if group else ()))
    kept = UnitGradients(client, reducer) if isinstance(reducer, OrderedReducer) else None
    bound = max_staleness if mode == "async" else None
    ahead = mode == "async" and bound is None
    step = TrainingStep(
        lookups, served, placed, rates, to_master, meter, group=group, sharing=sharing, kept=kept, ahead=ahead,
        bound=bound, named=settings.identities, on_step=on_step, waiting=waiting_for(lookups, groups, served) if mode
        == "async" else None,
    )  # fmt: skip
    step.optimizers = [JobOptimizer(one, step.apply, fixed=mode == "async", tables=rates.weights) for one in own]
    if group is not None:
        group.form(step)
    model.register_forward_hook(_ForwardMark(meter))
    cutting = None if kept is None else UnitSplitter(lookups, SourcePicker(shared.source), shared.unit)
    return Wired(model, step.optimizers, step, ahead, copied, cutting)


def client_of(to_master: master_link.MasterLink, settings: config.Settings, behind: Behind | None) -> TableClient:
    """A client of all servers, which follows them and their slots."""
    client = connect.to_tables(to_master, settings, behind=behind)
    to_master.news.follow_servers(lambda servers: client.readdress(servers.addresses, servers.lives))
    to_master.news.slots.follow(client.reroute)
    return client


def tables_of(model: nn.Module, client: TableClient, settings: config.Settings) -> list[ServedTable]:
    """The model's tables, served, each with what the job's settings say of it."""
    served = convert.convert(model, client)
    spec_overrides.grant(served, schema.tables_of(settings.tables))
    return served


def waiting_for(lookups: Lookups, groups: Sequence[DenseGroup], served: Sequence[ServedTable]) -> UnsteppedGradients:
    """What looks for gradients that no step has taken."""
    return UnsteppedGradients(lookups, [param for each in groups for _, param in each.members], tables=bool(served))


def reducer_of(named: Sequence[tuple[str, nn.Parameter]], served: Sequence[ServedTable], *, ordered: bool) -> Reducer:
    """What sums the dense gradients of a bsp group: `ordered`, unit by unit in the order of the batch."""
    said = allreduce_header.length(
        [table.spec.id for table in served]
    )  # with a cache or without: sums are the same then
    return (OrderedReducer if ordered else Reducer)([param for _, param in named], None, words=said)


def cache_of(shared: SharingOptions, mode: Mode, kept: StaleRowCache | None) -> Behind | None:
    """What goes between this worker and its tables: a cache, where workers may come to keep rows."""
    if kept is not None:
        return kept.wrap
    return _native.CachedBackend if shared.in_group(mode) and not shared.rules.off else None


def refuse(model: nn.Module, own: Sequence[torch.optim.Optimizer], max_staleness: int | None) -> None:
    """Say clearly what cannot be prepared."""
    if not isinstance(model, nn.Module):
        raise errors.BadInput(f"model is a {type(model).__name__}: wanted a torch.nn.Module")
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    wrapped = next((type(one).__name__ for one in model.modules() if isinstance(one, wrappers)), None)
    if wrapped:
        raise errors.BadInput(
            f"the model is wrapped in {wrapped}: Springtide shares gradients itself. Pass the plain model; "
            'sync="bsp" does what DistributedDataParallel does'
        )
    if not own:
        raise errors.BadInput("no optimizer was given: pass a torch.optim optimizer, or a list of them")
    for one in own:
        if isinstance(one, JobOptimizer):
            raise errors.BadInput("this optimizer came from job.prepare: pass the torch.optim one it was made of")
        if not isinstance(one, torch.optim.Optimizer):
            raise errors.BadInput(
                f"optimizer is a {type(one).__name__}: wanted a torch.optim.Optimizer of the model's parameters, or a "
                "list of them"
            )
        if isinstance(one, torch.optim.LBFGS):
            raise errors.BadInput(
                "LBFGS evaluates the loss several times a step, which served tables cannot take back; "
                "use SGD, Adagrad, Adam, AdamW, SparseAdam or RMSprop"
            )
    if max_staleness is not None:
        validation.number(max_staleness, "max_staleness", "a whole number of pushes, 0 or more, or None")


def dense_groups(
    model: nn.Module, own: Sequence[torch.optim.Optimizer], tables: Sequence[nn.Parameter]
) -> list[DenseGroup]:
    """The trainable parameters that are no table, group by group, each once."""
    names = {id(param): name for name, param in model.named_parameters()}
    taken = {id(weight) for weight in tables}
    groups = []
    for number, optimizer in enumerate(own):
        for index, group in enumerate(optimizer.param_groups):
            members = []
            for place, param in enumerate(group["params"]):
                if id(param) in taken or not param.requires_grad:
                    continue
                taken.add(id(param))
                name = names.get(id(param), f"optimizer {number}, group {index}, parameter {place}")
                if param.is_meta:
                    raise errors.BadInput(
                        f"parameter {name!r} is on the meta device and has no values: only tables may be there. Build "
                        "dense layers on the CPU or a GPU, or give them values with model.to_empty() and an init"
                    )
                members.append((name, param))
            if members:
                groups.append(DenseGroup(optimizer=optimizer, index=index, members=tuple(members)))
    return groups


def serve_dense(
    client: TableClient,
    model: nn.Module,
    groups: Sequence[DenseGroup],
    rates: TableRates,
    to_master: master_link.MasterLink,
    max_staleness: int | None,
) -> Dense:
    """Async: dense parameters live on servers, from the first worker's values on.

    A worker that comes later, or again, finds them trained already and takes them as they are.
    """
    held = served_dense.declare(client, groups, rates)
    frozen = [(name, param) for name, param in model.named_parameters() if not param.requires_grad]
    trained = {id(one.param) for one in held}
    still = served_dense.FrozenDense(
        client, [(name, one) for name, one in state_tensors(model) if id(one) not in trained]
    )
    served = served_dense.ServedDense(client, held, frozen=frozen, bounded=max_staleness is not None, still=still)

    def begin() -> None:
        served.assign()
        still.assign()

    once(to_master, "springtide: first values of dense parameters", begin)
    served.settle()
    still.settle()
    return served


def once(to_master: master_link.MasterLink, what: str, do: Callable[[], None]) -> None:
    """The first worker that comes here does it, others wait until it is done. If it dies at it, another one does it."""
    if to_master.shared.claim(what):
        do()
        to_master.shared.settle(what)


def state_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Dense parameters and buffers of the model, named: what every worker must begin with alike."""
    params = [(name, param) for name, param in model.named_parameters() if not isinstance(param, TableWeight)]
    return [*params, *model.named_buffers()]


def assign_tables(client: TableClient, served: Sequence[ServedTable]) -> None:
    """Done once: the weights that embeddings came with, made or loaded, become the tables' rows.

    Whoever was stopped at this and given up may wake when rows are trained: rows that are there are kept, and slots
    remember that they have had all.
    """
    given = []
    for table in served:
        if (first := table.first_rows) is not None:
            client.assign(table.name, *first, keep=True)
            table.initial = table.initial_keys = None
            given.append(table.spec.id)
    client.finish_first_values(given)


class _ForwardMark:
    """Tells the meter that the model's forward is done."""

    def __init__(self, meter: StepMeter) -> None:
        self._done = meter.forward_done
        self._outside = compile_guard.outside_graphs(lambda: meter.forward_done())  # a clock has no place in a graph

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module.training:
            self._outside() if torch.compiler.is_compiling() else self._done()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ForwardMark":
        return self

    def __reduce__(self) -> Any:
        raise errors.BadInput(NOT_PICKLED)
