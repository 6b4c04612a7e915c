"""Compares the predictions of an export with the predictions of the job, for `springtide serve-check`.

In: a function that builds the model, inputs, a checkpoint, and an export. The job's predictions use the rows of the
checkpoint in tables of this process; the tables' native store makes the rows that were never trained. The export's
predictions use rows from the export's files alone. Out: a `ServingCheck` with the largest difference.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils import _pytree

from springtide import errors
from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.format.storage import FileStore
from springtide.domain.model.tables import TableSpec
from springtide.embedding.lookup.calls import LookupCall
from springtide.embedding.lookup.lookup import Caller, Lookups, Outputs
from springtide.embedding.lookup.table_client import TableClient
from springtide.embedding.lookup.tables import ServedTable
from springtide.embedding.modules import convert
from springtide.export import export_folder, exporter
from springtide.export.table_files import ExportedModel, Keys

SEED = 0
"""Seed for both builds of the model, so that tensors which no export contains are equal in both builds."""

FEW_NAMES = 5
"""Names of tables in an error."""

FEWEST_SLOTS = 64
"""Slots of a store that no server shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedUpIds:
    """Ids that the inputs look up in one table."""

    ids: int
    """Number of different ids."""
    untrained: int
    """Number of ids without a row in the export, because they were never trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCheck:
    """Result of a comparison of predictions."""

    job: str
    checkpoint: int
    export: int
    equal: bool
    largest_difference: float
    tolerance: float
    worst: int
    """Position of the prediction with the largest difference."""
    of_job: float
    """The job's prediction at `worst`."""
    of_export: float
    predictions: int
    """Number of compared numbers."""
    tables: dict[str, LookedUpIds] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    """Tensors of the model that the export lacks. For these tensors, both builds use the values from the function that
    builds the model.
    """


class _RecordedLookups(Lookups):
    """Lookups that collect the ids of each table."""

    def __init__(self, client: TableClient) -> None:
        super().__init__(client)
        self._parts: dict[str, list[Keys]] = {}

    def run(self, module: Caller, *inputs: Any, weights: torch.Tensor | None = None) -> Outputs:
        self._record(module.call(*inputs))
        return super().run(module, *inputs, weights=weights)

    def run_together(self, calls: Any) -> list[Outputs]:
        for call in calls:
            self._record(call)
        return super().run_together(calls)

    def _record(self, call: Any) -> None:
        assert isinstance(call, LookupCall)
        for feature, (address, count, stride) in zip(call.features, call.ids, strict=True):
            ids = _ids_at(address, count, stride)
            if feature.padding is not None and not feature.pull_padding:
                ids = ids[ids != feature.padding]
            self._parts.setdefault(feature.table.name, []).append(ids)

    def take(self) -> dict[str, Keys]:
        """Return the different ids by table since the last call of this method."""
        parts, self._parts = self._parts, {}
        return {name: np.unique(np.concatenate(ids)) for name, ids in parts.items()}


def _ids_at(address: int, count: int, stride: int) -> Keys:
    if not count:
        return np.empty(0, dtype=np.int64)
    shape = {"shape": (count,), "strides": (8 * stride,), "typestr": "<i8", "data": (address, True), "version": 3}
    memory = type("Memory", (), {"__array_interface__": shape})()
    return np.array(memory, dtype=np.int64)


class _ServedModel:
    """The user's model, with its tables in this process."""

    def __init__(self, build: Callable[[], Any], specs: Mapping[str, TableSpec], *, slots: int, seed: int) -> None:
        torch.manual_seed(SEED)
        try:
            self.model = build()
        except Exception as error:
            raise errors.UserCodeFailed(
                f"--model cannot be built: {type(error).__name__}: {error}. Name a class or function without arguments"
            ) from error
        if not isinstance(self.model, nn.Module):
            raise errors.BadInput(
                f"--model built a {type(self.model).__name__}; expected a torch.nn.Module, from a class or function "
                "without arguments"
            )
        self.client = TableClient.local(slots=slots, seed=seed, threads=torch.get_num_threads())
        self.lookups = _RecordedLookups(self.client)
        self.tables = {table.name: table for table in convert.convert(self.model, self.lookups)}
        check_tables(self.tables, specs)
        for name, table in self.tables.items():
            table.spec = specs[name]
            table.release_first_rows()
        self.client.declare(specs[name] for name in self.tables)

    def load(self, dense: Mapping[str, torch.Tensor]) -> None:
        export_folder.check_dense(self.model, dense)
        self.model.load_state_dict(dense, strict=False)
        self.model.eval()

    def predict(self, inputs: Any) -> npt.NDArray[np.float64]:
        try:
            with torch.no_grad():
                made = call(self.model, inputs)
        except errors.SpringtideError:
            raise
        except Exception as error:
            raise errors.UserCodeFailed(
                f"the model failed on the inputs: {type(error).__name__}: {error}. --inputs needs one batch, as the "
                "model gets it in training"
            ) from error
        parts = [part for part in _pytree.tree_leaves(made) if isinstance(part, torch.Tensor)]
        if not parts:
            raise errors.BadInput(
                f"the model returned a {type(made).__name__} without a tensor; expected predictions as tensors"
            )
        return np.concatenate([part.detach().cpu().double().reshape(-1).numpy() for part in parts])


def call(model: nn.Module, inputs: Any) -> Any:
    """Call the model. The items of a tuple are the arguments. The items of a dict are arguments by name, if all names
    are parameters of forward(). Any other dict is one argument, like any other object.
    """
    if isinstance(inputs, tuple):
        return model(*inputs)
    if isinstance(inputs, dict) and set(inputs) <= set(inspect.signature(model.forward).parameters):
        return model(**inputs)
    return model(inputs)


def check_tables(served: Mapping[str, ServedTable], known: Mapping[str, TableSpec]) -> None:
    """Raise BadInput unless the export has the model's tables, with the same number of columns."""
    for name, table in served.items():
        if name not in known:
            named = ", ".join(sorted(known)[:FEW_NAMES]) + ("" if len(known) <= FEW_NAMES else ", ...")
            raise errors.BadInput(
                f"the model has a table {name!r}, which is not among the tables of the export: {named}. --model must "
                "build the model that the job trained"
            )
        if table.spec.dim != known[name].dim:
            raise errors.BadInput(
                f"table {name!r} has dim {known[name].dim} in the export and {table.spec.dim} in the model: --model "
                "must build the model that the job trained"
            )


def of_job(build: Callable[[], Any], inputs: Any, place: FileStore, manifest: Manifest) -> npt.NDArray[np.float64]:
    """Return the predictions of the job at a checkpoint."""
    outline = exporter.outline_of(place, manifest)
    specs = {spec.name: spec for spec in exporter.specs_of(place, manifest, outline)}
    served = _ServedModel(build, specs, slots=manifest.slots, seed=manifest.seed)
    dense = exporter.DenseParts(outline, manifest)
    rows = exporter.SlotRows(place, manifest)
    for slot in range(manifest.slots):
        found = rows.read(slot)
        dense.add(found)
        for name in served.tables:
            keys, values = found[specs[name].id]
            served.client.assign(name, keys, values)
    served.load(dense.tensors())
    return served.predict(inputs)


def of_export(
    build: Callable[[], Any], inputs: Any, found: ExportedModel
) -> tuple[npt.NDArray[np.float64], dict[str, Keys]]:
    """Return the predictions of an export, and the ids that they looked up, by table."""
    specs = {
        name: TableSpec(id=number, name=name, dim=table.rows.shape[1])
        for number, (name, table) in enumerate(found.tables.items())
    }
    served = _ServedModel(build, specs, slots=FEWEST_SLOTS, seed=0)
    served.load(found.dense)
    given: dict[str, Keys] = {}
    while True:
        predicted, missing = served.predict(inputs), False
        for name, ids in served.lookups.take().items():
            known = given.get(name, np.empty(0, dtype=np.int64))
            if len(unseen := np.setdiff1d(ids, known)):
                # the tables start empty: give them the rows of these ids, and predict again
                served.client.assign(name, unseen, found.tables[name].look_up(unseen))
                given[name], missing = np.union1d(known, unseen), True
        if not missing:
            return predicted, given


def compare(
    build: Callable[[], Any],
    inputs: Any,
    *,
    place: FileStore,
    manifest: Manifest,
    found: ExportedModel,
    tolerance: float,
) -> ServingCheck:
    """Compare the predictions of an export with those of the job. Two predictions count as equal if their difference is
    at most `tolerance`, or `tolerance` times the job's prediction if that prediction is above 1."""
    trained = of_job(build, inputs, place, manifest)
    exported, looked_up = of_export(build, inputs, found)
    if len(trained) != len(exported):
        raise errors.BadInput(
            f"the model made {len(trained)} predictions with the rows of the job and {len(exported)} with those of "
            "the export: predictions can be compared only if their number depends on the inputs alone"
        )
    apart = differences(trained, exported)
    worst = int(np.argmax(apart)) if len(apart) else 0
    return ServingCheck(
        job=manifest.job,
        checkpoint=manifest.number,
        export=found.number,
        equal=bool((apart <= tolerance * np.maximum(1.0, np.abs(trained))).all()),
        largest_difference=float(apart.max(initial=0.0)),
        tolerance=tolerance,
        worst=worst,
        of_job=float(trained[worst]) if len(trained) else 0.0,
        of_export=float(exported[worst]) if len(exported) else 0.0,
        predictions=len(trained),
        tables={
            name: LookedUpIds(ids=len(ids), untrained=len(np.setdiff1d(ids, found.tables[name].keys)))
            for name, ids in looked_up.items()
        },
        left_out=found.left_out,
    )


def differences(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return absolute differences. Equal infinities and two NaN differ by 0; NaN and a number by infinity."""
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        apart = np.abs(one - other)
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
