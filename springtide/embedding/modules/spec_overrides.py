"""Override the script's table settings with those of the job spec.

In: the served tables of a model, and a `TableWish` per table name. Out: the tables with new specs, before any table is
declared. Next: worker/setup.py declares them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from springtide import errors
from springtide.domain.spec.elastic_job import TableWish
from springtide.embedding.lookup.tables import ServedTable


def grant(served: Sequence[ServedTable], wishes: Mapping[str, TableWish]) -> None:
    """Change the named tables. An unknown name is an error in the job spec."""
    by_name = {table.name: table for table in served}
    for name, wish in wishes.items():
        if name not in by_name:
            raise errors.UnknownName("table (the job's spec names it) in the model", name, by_name)
        said = {each.name: getattr(wish, each.name) for each in fields(wish)}
        table = by_name[name]
        table.spec = replace(table.spec, **{what: value for what, value in said.items() if value is not None})
