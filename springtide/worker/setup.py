"""Connects a model to its tables: serves embeddings, places dense parameters, and gives all workers the same initial
values.

In: the user's model and optimizers, from job.py. Out: a `Wired` for the loop. The master also gets the model's
outline, for exports without the script. Next: worker/step/step.py.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import torch
from torch import nn

from springtide import _native, config, errors
from springtide.domain.core import validation
from springtide.domain.data.samples import DatasetCard
from springtide.domain.model.cache_rules import CacheRules, CacheUse
from springtide.domain.model.tables import SHARED_KEY, DenseOutline, Outline, TableOutline
from springtide.domain.spec import job_spec, schema
from springtide.domain.spec.tracker_target import HYPERPARAMETERS
from springtide.embedding.lookup import compile_guard
from springtide.embedding.lookup.device_tables import DeviceTables
from springtide.embedding.lookup.lookup import Lookups
from springtide.embedding.lookup.table_client import BeforeRead, Behind, TableClient
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.modules import convert
from springtide.embedding.modules.declared_weight import DeclaredWeight
from springtide.embedding.modules.served import LOAD_BEFORE, NOT_PICKLED
from springtide.embedding.modules.table_weight import TableWeight
from springtide.worker import connect
from springtide.worker.bsp import allreduce, batch_order
from springtide.worker.bsp.allreduce import Reducer
from springtide.worker.bsp.batch_order import OrderedReducer, UnitGradients, UnitSplitter
from springtide.worker.bsp.group import BspGroup, GroupModel
from springtide.worker.cache import row_cache
from springtide.worker.cache.coordinator import CacheCoordinator, open_coordinator
from springtide.worker.cache.row_cache import StaleRowCache
from springtide.worker.input.batch_rows import SamplePicker
from springtide.worker.link import master_link
from springtide.worker.link.optimizer import JobOptimizer
from springtide.worker.link.progress import StepMeter
from springtide.worker.step import dense
from springtide.worker.step.async_step import AsyncStep
from springtide.worker.step.bsp_step import BspStep
from springtide.worker.step.dense import Dense, DenseGroup, DenseSlot, LocalDense, ServedDense
from springtide.worker.step.hyperparams import TableRates
from springtide.worker.step.step import StepContext, StepListener, TrainingStep, UnsteppedGradients

Mode = Literal["alone", "async", "bsp"]


@dataclass(frozen=True, slots=True)
class Wired:
    """Model with served tables, and the step that trains it."""

    model: nn.Module
    step: TrainingStep
    client: TableClient
    ahead: bool
    """True if the worker requests the rows of the next batch before it trains the current batch."""
    group: BspGroup | None = None
    sharing: CacheCoordinator | None = None
    """Coordinator that allocates batches and caches rows, in a bsp group; otherwise None."""
    copies: StaleRowCache | None = None
    """Row cache of this worker, in an async job; None in a bsp job."""
    cutting: UnitSplitter | None = None
    """Splitter of batches into units, in a bsp group that sums gradients in the order of the batch; otherwise None."""

    @property
    def cache_use(self) -> CacheUse | None:
        rows = self.client.on_device
        if self.group is not None and rows is not None and rows.by_name:
            return rows.use()
        cache = self.sharing or self.copies
        return None if cache is None else cache.use()


@dataclass(frozen=True, slots=True)
class SharingOptions:
    """Options for caching rows and, in a bsp group, for allocating and summing samples."""

    picker: SamplePicker
    rules: CacheRules
    indexed: bool
    """True if the data set has indices."""
    unit: int = job_spec.BY_RANK
    """Number of samples per unit, if gradients are summed in the order of the batch."""

    def refuse(self, mode: Mode, model: nn.Module) -> None:
        if self.unit:
            batch_order.refuse_mode(mode, indexed=self.indexed)
            batch_order.refuse_model(model)

    def in_group(self, mode: Mode) -> bool:
        """Return True if batches may be allocated. For a stream or an IterableDataset, only on explicit request."""
        asked = self.rules.at_once or not self.rules.auto
        return mode == "bsp" and (self.indexed or asked)


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
    listener: StepListener,
) -> Wired:
    refuse(model, own, max_staleness)
    shared.refuse(mode, model)
    copied = row_cache.for_async(shared.rules, max_staleness=max_staleness) if mode == "async" else None
    sharing: CacheCoordinator | None = None

    def check_read(tables: Sequence[int]) -> None:
        if sharing is not None:
            sharing.check_read(tables)

    client = connected(to_master, settings, cache_of(shared, mode, copied), check_read)
    lookups = Lookups(client)
    served = convert.convert(model, lookups)
    convert.grant(served, schema.tables_of(settings.tables))
    rates = TableRates(own, served)
    groups = dense_groups(model, own, [table.weight for table in served])
    named = [member for group in groups for member in group.members]
    client.declare([table.spec for table in served])
    assign = functools.partial(assign_tables, client, served)
    group, reducer = None, None
    if copied is not None:
        copied.keep(served)
    if mode == "async":
        lookups.pool_on_gpu()
        placed: Dense = serve_dense(client, model, groups, rates, to_master, max_staleness)
        to_master.shared.once("springtide: first weights of tables", assign)
    else:
        reducer = reducer_of(named, served, ordered=bool(shared.unit)) if mode == "bsp" else None
        client.on_device = (
            rows_alone(served, shared.rules) if reducer is None else rows_of_group(served, shared, lookups, reducer)
        )
        placed = LocalDense(named, reducer, own, client.on_device)
        if reducer is None:
            lookups.place()
            assign()
        else:
            held = GroupModel(list(own), lambda: [tensor for _, tensor in state_tensors(model)], assign)
            group = BspGroup(to_master, client, held, reducer)
            if shared.in_group(mode):
                given = shared.rules, model, shared.picker, lookups, served, reducer, group, meter
                sharing = open_coordinator(*given, to_master.join(), max(1, shared.unit))
    made = outline(model, served, placed, state_tensors(model) if group else ())
    to_master.shared.share(SHARED_KEY, msgspec.msgpack.encode(made))
    context = StepContext(lookups, served, placed, rates, to_master, meter, on_step, listener)
    model.register_forward_hook(_ForwardMark(meter))
    if group is None:
        return wired_alone(model, context, own, mode, settings, max_staleness, copied, named)
    return wired_group(model, context, own, settings, group, reducer, sharing, shared)


def wired_group(
    model: nn.Module,
    context: StepContext,
    own: Sequence[torch.optim.Optimizer],
    settings: config.Settings,
    group: BspGroup,
    reducer: Reducer | None,
    sharing: CacheCoordinator | None,
    shared: SharingOptions,
) -> Wired:
    client = context.lookups.client
    units = UnitGradients(client, reducer) if isinstance(reducer, OrderedReducer) else None
    step = BspStep(context, own, group, coordinator=sharing, units=units, named=settings.identities)
    group.form(step)
    release_first_rows(context.tables)
    cutting = None if units is None else UnitSplitter(context.lookups, shared.picker, shared.unit)
    return Wired(model, step, client, False, group, sharing, cutting=cutting)


def wired_alone(
    model: nn.Module,
    context: StepContext,
    own: Sequence[torch.optim.Optimizer],
    mode: Mode,
    settings: config.Settings,
    max_staleness: int | None,
    copies: StaleRowCache | None,
    dense: Sequence[tuple[str, nn.Parameter]],
) -> Wired:
    client = context.lookups.client
    release_first_rows(context.tables)
    if mode == "alone":
        return Wired(model, AsyncStep(context, own, served=False, named=settings.identities), client, ahead=False)
    params = [param for _, param in dense]
    unstepped = UnsteppedGradients(context.lookups, params, tables=bool(context.tables))
    step = AsyncStep(
        context, own, served=True, named=settings.identities, max_staleness=max_staleness, unstepped=unstepped
    )
    return Wired(model, step, client, ahead=max_staleness is None, copies=copies)


def connected(
    to_master: master_link.MasterLink, settings: config.Settings, behind: Behind | None, before_read: BeforeRead
) -> TableClient:
    """Connect to the tables. Follow servers that move to new addresses, and follow new placements."""
    client = connect.to_tables(to_master, settings, behind=behind, before_read=before_read)
    to_master.news.servers.follow(lambda servers: client.readdress(servers.addresses, servers.lives))
    to_master.news.slots.follow(client.reroute)
    return client


def reducer_of(named: Sequence[tuple[str, nn.Parameter]], served: Sequence[ServedTable], *, ordered: bool) -> Reducer:
    """Return the reducer of a bsp group's dense gradients. With `ordered`, the reducer sums units in the order of the
    batch."""
    # reserve the places even without a cache, so that sums of gradients are equal with and without a cache
    words = allreduce.words_needed([table.spec.id for table in served])
    return (OrderedReducer if ordered else Reducer)([param for _, param in named], None, words=words)


def rows_alone(served: Sequence[ServedTable], rules: CacheRules) -> DeviceTables:
    """Return the tables that a job without servers may keep in GPU memory."""
    return DeviceTables(served, most_bytes=rules.size or None, most_share=rules.share or None)


def rows_of_group(
    served: Sequence[ServedTable], shared: SharingOptions, lookups: Lookups, reducer: Reducer
) -> DeviceTables | None:
    """Return the tables that a bsp group of one worker may keep in GPU memory; None if the user's options forbid it."""
    rules = shared.rules
    if shared.unit or rules.off:
        return None
    alone = lambda: reducer.group is None and not lookups.fixed  # noqa: E731
    return DeviceTables(served, of_servers=True, permitted=alone, most_bytes=rules.size, most_share=rules.share)


def cache_of(shared: SharingOptions, mode: Mode, kept: StaleRowCache | None) -> Behind | None:
    if kept is not None:
        return kept.wrap
    return _native.CachedBackend if shared.in_group(mode) and not shared.rules.off else None


def refuse(model: nn.Module, own: Sequence[torch.optim.Optimizer], max_staleness: int | None) -> None:
    if not isinstance(model, nn.Module):
        raise errors.BadInput(f"model is a {type(model).__name__}: expected a torch.nn.Module")
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    wrapped = next((type(module).__name__ for module in model.modules() if isinstance(module, wrappers)), None)
    if wrapped:
        raise errors.BadInput(
            f"the model is wrapped in {wrapped}: Springtide shares gradients itself. Pass the plain model; "
            'sync="bsp" does what DistributedDataParallel does'
        )
    for name, param in model.named_parameters():
        if within := getattr(param, "_in_backward_optimizers", None):
            kind = type(within[0]).__name__
            raise errors.BadInput(
                f"parameter {name!r} has an optimizer that runs in backward (_apply_optimizer_in_backward), which a "
                f"job cannot run: pass {kind}([parameters], ...) to job.prepare instead, beside the other optimizers"
            )
    if not own:
        raise errors.BadInput("no optimizer was given: pass a torch.optim optimizer, or a list of them")
    for optimizer in own:
        if isinstance(optimizer, JobOptimizer):
            raise errors.BadInput("this optimizer came from job.prepare: pass the original torch.optim optimizer")
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise errors.BadInput(
                f"optimizer is a {type(optimizer).__name__}: expected a torch.optim.Optimizer of the model's "
                "parameters, or a list of them"
            )
        if isinstance(optimizer, torch.optim.LBFGS):
            raise errors.BadInput(
                "LBFGS evaluates the loss several times a step, which served tables cannot take back; "
                "use SGD, Adagrad, Adam, AdamW, SparseAdam or RMSprop"
            )
    if max_staleness is not None:
        validation.number(max_staleness, "max_staleness", "a whole number of pushes, 0 or more, or None")


def dense_groups(
    model: nn.Module, own: Sequence[torch.optim.Optimizer], tables: Sequence[nn.Parameter]
) -> list[DenseGroup]:
    for name, tensor in state_tensors(model):
        refuse_valueless(name, tensor)
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
                refuse_valueless(name, param)
                members.append((name, param))
            if members and isinstance(optimizer, torch.optim.SparseAdam):
                refuse_dense(members, model)
            if members:
                groups.append(DenseGroup(optimizer=optimizer, index=index, members=tuple(members)))
    return groups


def refuse_dense(members: Sequence[tuple[str, nn.Parameter]], model: nn.Module) -> None:
    """Raise BadInput if plain PyTorch would give one of these parameters of SparseAdam a dense gradient."""
    sparse = {id(module.weight) for module in model.modules() if getattr(module, "sparse", False)}
    if dense := [name for name, param in members if id(param) not in sparse]:
        raise errors.BadInput(
            f"SparseAdam got the parameter {dense[0]!r}, whose gradients are dense: give it only the weights of tables "
            "(and of other embeddings with sparse=True), and the other parameters to an optimizer such as Adam: "
            "job.prepare(model, [torch.optim.SparseAdam(table_weights), torch.optim.Adam(others)], dataset)"
        )


def refuse_valueless(name: str, tensor: torch.Tensor) -> None:
    if isinstance(tensor, DeclaredWeight):
        raise errors.BadInput(
            f"parameter {name!r} was built in `with st.serving():` and has no values, but is not a served table: the "
            "log says why. Build this embedding outside of `with st.serving():`, so that workers hold it"
        )
    if tensor.is_meta:
        raise errors.BadInput(
            f"parameter {name!r} is on the meta device and has no values: only tables may be on the meta device. Build "
            "the model in `with st.serving():`, which leaves only tables without memory, or give dense layers values "
            "with model.to_empty() and an init"
        )


def serve_dense(
    client: TableClient,
    model: nn.Module,
    groups: Sequence[DenseGroup],
    rates: TableRates,
    to_master: master_link.MasterLink,
    max_staleness: int | None,
) -> Dense:
    """Serve dense parameters of an async job. Parameters start with the values of the first worker. A worker that joins
    later gets the trained values.
    """
    held = dense.declare(client, groups, rates)
    frozen = [(name, param) for name, param in model.named_parameters() if not param.requires_grad]
    trained = {id(part.param) for part in held}
    still = dense.declare_still(
        client, [(name, tensor) for name, tensor in state_tensors(model) if id(tensor) not in trained]
    )
    served = dense.ServedDense(client, held, frozen=frozen, bounded=max_staleness is not None, still=still)
    served.begin(functools.partial(to_master.shared.once, "springtide: first values of dense parameters"))
    return served


def state_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the named dense parameters and buffers of the model, which must be equal on all workers at the start."""
    params = [(name, param) for name, param in model.named_parameters() if not isinstance(param, TableWeight)]
    return [*params, *model.named_buffers()]


def assign_tables(client: TableClient, served: Sequence[ServedTable]) -> None:
    """Assign the initial weights of embeddings to the tables, once per job.

    A worker may be suspended here, and continue after other workers have trained rows. Existing rows are therefore
    kept, and slots remember that the assignment is complete.
    """
    given = []
    for table in served:
        if table.initial is not None:
            for keys, rows in table.first_rows():
                client.assign(table.name, keys, rows, keep=True)
            table.release_first_rows()
            given.append(table.spec.id)
    client.finish_first_values(given)


def release_first_rows(served: Sequence[ServedTable]) -> None:
    """Free the initial rows of workers that did not assign them, because another worker did."""
    for table in served:
        table.release_first_rows()


class _ForwardMark:
    """Forward hook that tells the meter when the model's forward ends."""

    def __init__(self, meter: StepMeter) -> None:
        self._done = meter.forward_done
        # call the hook outside of compiled graphs, because a compiled graph cannot read a clock
        self._outside = compile_guard.outside_graphs(lambda: meter.forward_done())

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module.training:
            self._outside() if torch.compiler.is_compiling() else self._done()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_ForwardMark":
        return self

    def __reduce__(self) -> Any:
        raise errors.BadInput(NOT_PICKLED)


class LoadGuard:
    """Hook that refuses to load state into a watched model after `job.prepare`, because every worker would overwrite
    trained rows."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self._watched: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        for module in () if model is None else model.modules():
            self._watched.add(module)
            module.register_load_state_dict_pre_hook(self)

    @staticmethod
    def lift(model: nn.Module) -> None:
        """Let a model load state again, because its job has ended its training."""
        for module in model.modules():
            for hook in module._load_state_dict_pre_hooks.values():
                if isinstance(guard := getattr(hook, "hook", None), LoadGuard):
                    guard._watched.discard(module)

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if module in self._watched:
            raise errors.BadInput(LOAD_BEFORE)

    def __deepcopy__(self, memo: dict[int, Any]) -> "LoadGuard":
        return self

    def __reduce__(self) -> Any:
        return LoadGuard, ()  # a part of the model that is sent to another process may load weights in that process


def share_hyperparameters(
    to_master: master_link.MasterLink, own: Sequence[torch.optim.Optimizer], card: DatasetCard
) -> None:
    """Tell experiment trackers the sizes and the plain options of the optimizers. The names of the second optimizer's
    options end in `_1`.
    """
    found: dict[str, bool | int | float | str] = {"batch_size": card.batch_size, "epochs": card.epochs}
    for number, optimizer in enumerate(own):
        end = f"_{number}" if number else ""
        found[f"optimizer{end}"] = type(optimizer).__name__
        options = {name: validation.plain(value) for name, value in optimizer.defaults.items()}
        found |= {f"{name}{end}": value for name, value in options.items() if isinstance(value, int | float | str)}
    to_master.shared.share(HYPERPARAMETERS, msgspec.msgpack.encode(found))


def outline(
    model: nn.Module, tables: Sequence[ServedTable], placed: Any, group: Sequence[tuple[str, torch.Tensor]] = ()
) -> Outline:
    """Return which parts of this model are on servers. `group` has the tensors of a bsp group, in order."""
    held: list[DenseSlot] = []
    if isinstance(placed, ServedDense):
        held = placed.held + [part for part in placed.still if isinstance(part.param, nn.Parameter)]
    known = {id(part.param) for part in held} | {id(table.weight) for table in tables} | {id(part) for _, part in group}
    state = [*model.named_parameters(), *model.named_buffers()]
    fleeting = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    return Outline(
        tables=tuple(
            TableOutline(name=table.name, paths=table.paths, rows=table.request.rows, dim=table.spec.dim)
            for table in tables
        ),
        dense=tuple(
            DenseOutline(
                name=part.name,
                shape=tuple(part.param.shape),
                dtype=str(part.param.dtype).removeprefix("torch."),
                table=part.table,
                first=part.first,
                chunks=part.chunks,
            )
            for part in held
        ),
        group=tuple("" if name in fleeting else name for name, _ in group),
        in_workers=tuple(name for name, tensor in state if id(tensor) not in known),
    )
