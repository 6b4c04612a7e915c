"""Pure. What a script is told of its job's spec, as settings of its process: data sets, and what tables are to be.

In: an `ElasticJob`, when processes are started (`platforms.agent.run_plan`, pods). Out: text for `config.Settings`,
and back. Next: `worker.job` has `job.data`, `embedding.lookup.tables` are made as they are to be.
"""

import json
from collections.abc import Mapping

from springtide import errors
from springtide.domain.spec import schema
from springtide.domain.spec.elastic_job import ElasticJob, TableWish


def told(job: ElasticJob) -> dict[str, str]:
    """Settings by name; what is not given is not told."""
    found = {}
    if job.data:
        found["data"] = json.dumps(dict(job.data), sort_keys=True)
    if job.tables:
        found["tables"] = json.dumps({name: schema.plain_of(wish) for name, wish in job.tables.items()})
    return found


class Data(dict[str, str]):
    """Data sets by name; one that is not there is a mistake that the user can mend."""

    def __missing__(self, name: str) -> str:
        if not self:
            raise errors.BadInput(
                f"job.data[{name!r}]: the job was given no data; write `data: {{{name}: PATH_OR_URL}}` into its spec, "
                f'or have `job.data.get({name!r}, "...")` say where else it is'
            )
        raise errors.UnknownName("data set in the job's spec", name, self)


def data_of(text: str) -> Mapping[str, str]:
    return Data(_mapping("data", text))


def tables_of(text: str) -> dict[str, TableWish]:
    return {name: schema.made(TableWish, given, ("tables", name)) for name, given in _mapping("tables", text).items()}


def _mapping(what: str, text: str) -> dict[str, str]:
    try:
        found = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise errors.BadInput(f"setting {what}: not JSON: {error}; wanted an object of names to values") from None
    if not isinstance(found, dict):
        raise errors.BadInput(f"setting {what}: {text[:40]}: wanted an object of names to values")
    return found
