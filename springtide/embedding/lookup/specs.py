"""Convert a table spec to the native core's format and back.

In: `domain.model.tables.TableSpec`, which checkpoints store. Out: `_native.TableSpec`, which servers and backends take.
"""

import dataclasses
from typing import Any

from springtide import _native
from springtide.domain.model import tables


def native_spec(spec: tables.TableSpec) -> _native.TableSpec:
    kernel = dataclasses.asdict(spec.optim)
    return _native.TableSpec(
        id=spec.id,
        name=spec.name,
        dim=spec.dim,
        dtype=spec.dtype,
        init=(spec.init.kind, spec.init.a, spec.init.b),
        optimizer=kernel.pop("kind"),
        min_count=spec.min_count,
        ttl=spec.ttl,
        capacity_rows=spec.capacity_rows,
        **kernel,
    )


def plain_spec(spec: _native.TableSpec) -> tables.TableSpec:
    """Return the spec behind a native spec. Its numbers have single precision, so that both conversions are inverse."""
    names = [field.name for field in dataclasses.fields(tables.OptimSpec) if field.name != "kind"]
    kernel: dict[str, Any] = {"kind": spec.optimizer, **{name: getattr(spec, name) for name in names}}
    kind, a, b = spec.init
    dtype: Any = spec.dtype
    return tables.TableSpec(
        id=spec.id,
        name=spec.name,
        dim=spec.dim,
        dtype=dtype,
        init=tables.Init(kind=kind, a=a, b=b),
        optim=tables.OptimSpec(**kernel),
        min_count=spec.min_count,
        ttl=spec.ttl,
        capacity_rows=spec.capacity_rows,
    )
