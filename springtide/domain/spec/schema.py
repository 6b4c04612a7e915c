"""Pure. Converts job specifications to and from plain data, and reports every mistake with its path.

`launch.spec.spec_reader` adds line and column numbers; `platforms.k8s` builds the schema of its custom resource.
"""

import ast
import difflib
import inspect
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

from springtide import errors
from springtide.domain.spec.elastic_job import ElasticJob, TableWish
from springtide.domain.spec.job_spec import check_name

GROUP, VERSION, KIND = "springtide.dev", "v1alpha1", "ElasticJob"
API_VERSION = f"{GROUP}/{VERSION}"
OF_TOOLS = ("kubernetes.io", "k8s.io", GROUP, "helm.sh", "argoproj.io", "fluxcd.io")
"""Prefixes of labels and annotations that have a meaning for kubectl, Helm, Argo CD, Flux or Springtide."""
ENVELOPE = ("apiVersion", "kind", "metadata", "spec", "status")
NAME = "name"
Noun = typing.TypeVar("Noun")
Path = tuple[str | int, ...]
"""Path to a value in a spec: names and indices."""


@dataclass(frozen=True, slots=True)
class Field:
    """Field of a spec class, with its spelling in YAML."""

    name: str
    key: str
    kind: Any
    required: bool
    default: Any
    words: str
    """Text of the field's docstring."""


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """Mistake in a spec, with its path."""

    path: Path
    message: str
    at_key: bool = False
    """True if the name of the field is wrong; False if its value is wrong."""

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True)
class Scalar:
    """YAML scalar together with its source text. A text field keeps 010, off or 1.10 as written."""

    text: str
    value: Any
    quoted: bool = False


@cache
def fields_of(kind: type) -> tuple[Field, ...]:
    hints, words = typing.get_type_hints(kind), _words(kind)
    found = []
    for field in fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        default = field.default if field.default is not MISSING else None
        if field.default_factory is not MISSING:
            default = field.default_factory()
        found.append(
            Field(
                field.name,
                camel(field.name),
                _without_none(hints[field.name]),
                required,
                default,
                words.get(field.name, ""),
            )
        )
    return tuple(found)


def camel(name: str) -> str:
    """Return the YAML spelling of a name: `slo_lag` becomes `sloLag`."""
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def shown(path: Path) -> str:
    """Format a path, such as `spec.workers.min` or `spec.arguments[1]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def to_plain(job: ElasticJob, *, namespace: str = "") -> dict[str, Any]:
    """Return the whole object in the form that a cluster stores. Fields with their default value are omitted."""
    metadata = {NAME: job.name} if job.name else {}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec_of(job)}


def spec_of(job: ElasticJob) -> dict[str, Any]:
    plain: dict[str, Any] = plain_of(job)
    plain.pop(NAME, None)
    return plain


def from_plain(given: Mapping[str, Any]) -> ElasticJob:
    """Return a job from a whole object, or from a spec that contains `name`. One error lists every mistake."""
    job, problems = check(given)
    if job is None:
        raise errors.BadInput("; ".join(str(problem) for problem in problems))
    return job


def from_spec(spec: Mapping[str, Any], name: str = "") -> ElasticJob:
    return from_plain({"metadata": {NAME: name} if name else {}, "spec": spec})


def made(kind: type[Noun], given: Any, path: Path = ()) -> Noun:
    """Return an instance of a spec class from plain data. One error lists every mistake."""
    problems: list[SpecProblem] = []
    thing = _fitted(given, kind, path, problems)
    if problems:
        raise errors.BadInput("; ".join(str(problem) for problem in problems))
    assert isinstance(thing, kind)
    return thing


def check(given: Any) -> tuple[ElasticJob | None, list[SpecProblem]]:
    problems: list[SpecProblem] = []
    if not isinstance(given, Mapping):
        return None, [SpecProblem((), f"expected a mapping such as `script: train.py`, got {got_of(given)}")]
    spec = dict(given)
    path: Path = ()
    name_path: Path = (NAME,)
    if any(key in given for key in ENVELOPE):
        path, name_path = ("spec",), ("metadata", NAME)
        spec = _unwrapped(given, problems)
    if (name := _value(spec.pop(NAME, None))) is not None:
        try:
            check_name(_text(name))
        except errors.BadInput as error:
            problems.append(SpecProblem(name_path, str(error)))
    job = _made(spec, ElasticJob, path, problems)
    if job is None or problems:
        return None, problems
    return replace(job, name=_text(name)) if name is not None else job, []


def _unwrapped(given: Mapping[str, Any], problems: list[SpecProblem]) -> dict[str, Any]:
    """Return the spec that a whole object contains, with the name from its metadata."""
    known = {field.key for field in fields_of(ElasticJob)} - {NAME}
    for key in given:
        if key not in ENVELOPE:
            hint = f"this field belongs under spec: `spec: {{{key}: ...}}`" if key in known else no_field(key, ENVELOPE)
            problems.append(SpecProblem((key,), hint, at_key=True))
    for key, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if key in given and (got := _text(given[key])) != wanted:
            problems.append(SpecProblem((key,), f"got {got!r}, expected {wanted}"))
    metadata, spec = _value(given.get("metadata")), _value(given.get("spec"))
    if metadata is not None and not isinstance(metadata, Mapping):
        problems.append(SpecProblem(("metadata",), f"got {got_of(metadata)}, expected a mapping such as {{name: ctr}}"))
        metadata = None
    if not isinstance(spec, Mapping):
        at = ("spec",) if "spec" in given else ()
        problems.append(SpecProblem(at, f"got {got_of(spec)} as spec, expected a mapping such as {{script: train.py}}"))
        spec = {"script": "-"}
    elif NAME in spec:
        problems.append(SpecProblem(("spec", NAME), "a name goes under metadata: `metadata: {name: ...}`", at_key=True))
    return {**_with_marks(spec, metadata or {}, problems), NAME: (metadata or {}).get(NAME)}


def for_pods(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the labels or annotations that pods inherit from a job. Labels and annotations that identify the job to
    tools are left out.
    """
    owners = {key: str(key).rpartition("/")[0] for key in given}
    return {key: text for key, text in given.items() if not owners[key].endswith(OF_TOOLS)}


def _with_marks(spec: Mapping[str, Any], metadata: Mapping[str, Any], problems: list[SpecProblem]) -> Mapping[str, Any]:
    """Add the object's labels and annotations to the labels and annotations for its pods. Values in the spec take
    precedence."""
    wish = _value(spec.get("kubernetes"))
    if not isinstance(wish, Mapping | None):
        return spec
    given = {}
    for key in ("labels", "annotations"):
        marks, own = _value(metadata.get(key)), _value((wish or {}).get(key))
        if not isinstance(marks, Mapping | None):
            message = f"got {got_of(marks)}, expected a mapping such as {{team: ads}}"
            problems.append(SpecProblem(("metadata", key), message))
        elif marks and isinstance(own, Mapping | None):
            given[key] = {**for_pods(marks), **(own or {})}
    return {**spec, "kubernetes": {**(wish or {}), **given}} if given else spec


def _made(given: Mapping[Any, Any], kind: type, path: Path, problems: list[SpecProblem]) -> Any:
    """Return an instance of a class, or None after a mistake. After a mistake, the remaining fields are still
    checked."""
    known = {field.key: field for field in fields_of(kind)}
    before, values = len(problems), {}
    for key, value in given.items():
        field = known.get(key)
        if field is None:
            problems.append(
                SpecProblem((*path, key), no_field(key, [name for name in known if name != NAME], kind), at_key=True)
            )
        elif _value(value) is not None:
            so_far, fitted = len(problems), _fitted(value, field.kind, (*path, key), problems)
            if len(problems) == so_far:
                values[field.name] = fitted
    lacking = [field for field in known.values() if field.required and field.name not in values]
    problems += [
        SpecProblem(path, f"no {name.key}; expected {_example(name)}")
        for name in lacking
        if _value(given.get(name.key)) is None
    ]
    if lacking:
        return None
    whole = len(problems) == before
    try:
        made = kind(**values)
    except errors.BadInput as error:
        first = str(error).partition(" ")[0].rstrip(":")
        at = next(((*path, field.key) for field in known.values() if field.name == first), path)
        if whole or first in values:  # skip the error if a value that was rejected earlier may have caused it
            problems.append(SpecProblem(at, str(error)))
        return None
    return made if whole else None


def _fitted(value: Any, kind: Any, path: Path, problems: list[SpecProblem]) -> Any:
    """Convert a value to a type, and record a problem for each part that does not fit."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    plain = _value(value)
    if kind is Any:
        return _all_plain(value)
    if is_dataclass(kind) and isinstance(kind, type):
        if isinstance(plain, Mapping):
            return _made(plain, kind, path, problems)
        example = ", ".join(f"{field.key}: ..." for field in fields_of(kind)[:2])
        return _misfit(path, f"a mapping such as {{{example}}}", value, problems)
    if origin is tuple:
        if isinstance(plain, Sequence) and not isinstance(plain, str | bytes):
            return tuple(_fitted(item, inner[0], (*path, place), problems) for place, item in enumerate(plain))
        return _misfit(path, "a list", value, problems)
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        if isinstance(plain, Mapping):
            return {key: _fitted(item, inner[1], (*path, key), problems) for key, item in plain.items()}
        return _misfit(path, "a mapping of names to values", value, problems)
    return _scalar(value, kind, path, problems)


def _scalar(value: Any, kind: Any, path: Path, problems: list[SpecProblem]) -> Any:
    plain = _value(value)
    if typing.get_origin(kind) is typing.Literal:
        words = typing.get_args(kind)
        if (text := _text(value)) in words:
            return text
        near = difflib.get_close_matches(text, words, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        problems.append(SpecProblem(path, f"got {text!r}, expected {' or '.join(words)}.{hint}"))
        return None
    if kind is str:
        if isinstance(value, Scalar):
            return value.text
        if isinstance(plain, str) or (isinstance(plain, int | float) and not isinstance(plain, bool)):
            return str(plain)
        return _misfit(path, "text", value, problems)
    if kind is bool:
        return plain if isinstance(plain, bool) else _misfit(path, "true or false", value, problems)
    number = _number(value)
    if kind is int:
        if number is not None and number == int(number):
            return int(number)
        return _misfit(path, "a whole number", value, problems)
    return float(number) if number is not None else _misfit(path, "a number", value, problems)


def _number(value: Any) -> int | float | None:
    """Return a finite number. YAML reads 1e3 as text, but users mean a number."""
    plain = _value(value)
    if isinstance(value, Scalar) and isinstance(plain, str) and not value.quoted:
        try:
            plain = float(plain)
        except ValueError:
            return None
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not math.isfinite(plain):
        return None
    return plain


def _misfit(path: Path, wanted: str, value: Any, problems: list[SpecProblem]) -> None:
    problems.append(SpecProblem(path, f"got {got_of(value)}, expected {wanted}"))


def got_of(value: Any) -> str:
    plain = _value(value)
    if plain is None:
        return "nothing"
    if isinstance(plain, Mapping):
        return f"a mapping ({', '.join(str(key) for key in list(plain)[:3])})" if plain else "an empty mapping"
    if isinstance(plain, Sequence) and not isinstance(plain, str | bytes):
        return f"a list of {len(plain)}"
    if isinstance(plain, str) and (not isinstance(value, Scalar) or value.quoted):
        return f'"{plain[:60]}"'
    return f"{_text(value)[:60]}"


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Scalar) else value


def _text(value: Any) -> str:
    return value.text if isinstance(value, Scalar) else str(value)


def _all_plain(value: Any) -> Any:
    value = _value(value)
    if isinstance(value, Mapping):
        return {str(key): _all_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_all_plain(item) for item in value]
    return value


def no_field(key: Any, names: Sequence[str], kind: type | None = None) -> str:
    """Return an error for an unknown field. The error suggests a similar name or a nested field, or lists all names."""
    spelled = camel(str(key))
    near = [spelled] if spelled in names else difflib.get_close_matches(str(key), names, n=1)
    inside = [f"{outer.key}.{spelled}" for outer in (fields_of(kind) if kind else ()) if spelled in _keys(outer.kind)]
    if hint := (*near, *inside):
        return f"no field of that name. Did you mean {hint[0]!r}?"
    return f"no field of that name. Known: {', '.join(names)}."


def _keys(kind: Any) -> set[str]:
    return {field.key for field in fields_of(kind)} if isinstance(kind, type) and is_dataclass(kind) else set()


def _example(field: Field) -> str:
    return f"`{field.key}: train.py`" if field.key == "script" else f"a value for {field.key}"


def plain_of(value: Any) -> Any:
    """Convert a value to mappings, lists and scalars. Fields with their default are omitted."""
    if is_dataclass(value) and not isinstance(value, type):
        kept = {}
        for field in fields_of(type(value)):
            own = getattr(value, field.name)
            if own is not None and (field.required or own != field.default):
                kept[field.key] = plain_of(own)
        return kept
    if isinstance(value, Mapping):
        return {key: plain_of(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain_of(item) for item in value]
    return value


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (kind,) = (choice for choice in typing.get_args(kind) if choice is not type(None))
    return kind


def _words(kind: type) -> dict[str, str]:
    """Return the docstring of each field, including those of base classes."""
    found = {}
    for part in kind.__mro__[:-1]:
        made = _classes_of(inspect.getmodule(part))[part.__name__]
        for field, words in zip(made.body, made.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(words, ast.Expr)
                and isinstance(words.value, ast.Constant)
            ):
                found[ast.unparse(field.target)] = inspect.cleandoc(str(words.value.value)).replace("\n", " ")
    return found


@cache
def _classes_of(module: types.ModuleType | None) -> dict[str, ast.ClassDef]:
    """Return the syntax of each class of a module. `inspect.getsource` would parse the module anew for each class."""
    assert module is not None, "spec classes are defined in modules"
    tree = ast.parse(inspect.getsource(module))
    return {made.name: made for made in tree.body if isinstance(made, ast.ClassDef)}


def settings_of(job: ElasticJob) -> dict[str, str]:
    found = {}
    if job.data:
        found["data"] = json.dumps(dict(job.data), sort_keys=True)
    if job.tables:
        found["tables"] = json.dumps({name: plain_of(wish) for name, wish in job.tables.items()})
    return found


class NamedData(dict[str, str]):
    """Data sets by name. A missing name raises an error with instructions for the user."""

    def __missing__(self, name: str) -> str:
        if not self:
            raise errors.BadInput(
                f"job.data[{name!r}]: the job was given no data; write `data: {{{name}: PATH_OR_URL}}` into its spec, "
                f'or have `job.data.get({name!r}, "...")` say where else it is'
            )
        raise errors.UnknownName("data set in the job's spec", name, self)


def data_of(text: str) -> Mapping[str, str]:
    return NamedData(_mapping("data", text))


def tables_of(text: str) -> dict[str, TableWish]:
    return {name: made(TableWish, given, ("tables", name)) for name, given in _mapping("tables", text).items()}


def _mapping(what: str, text: str) -> dict[str, str]:
    try:
        found = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise errors.BadInput(f"setting {what}: not JSON: {error}; expected an object of names to values") from None
    if not isinstance(found, dict):
        raise errors.BadInput(f"setting {what}: {text[:40]}: expected an object of names to values")
    return found
