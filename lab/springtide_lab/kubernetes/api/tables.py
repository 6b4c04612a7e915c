"""Pure. Objects as a `Table`: what `kubectl get` shows.

In: objects, their kind (with its columns) and the time. Out: column definitions and a row an object.
"""

import datetime
import re
from collections.abc import Sequence
from typing import Any

from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects.kinds import PODS, Column, Kind

AGE = Column("Age", "string", ".metadata.creationTimestamp")
POD_COLUMNS = (
    Column("Ready", "string", ""),
    Column("Status", "string", ""),
    Column("Restarts", "integer", ""),
    AGE,
    Column("IP", "string", ".status.podIP", 1),
    Column("Node", "string", ".spec.nodeName", 1),
)
_STEP = re.compile(r"\[\?\(@\.([\w.]+)==[\"']([^\"']*)[\"']\)\]|\[(\d+|\*)\]|\.?((?:[^.\[\]\\]|\\.)+)")


def table(kind: Kind, items: Sequence[Json], now: float, version: str, include: str = "Metadata") -> Json:
    """The whole table; `include` says what of each object comes along: None, Metadata or Object."""
    columns = POD_COLUMNS if kind is PODS else kind.columns or (AGE,)
    definitions = [_definition(Column("Name", "string", "", format="name")), *map(_definition, columns)]
    rows = []
    for item in items:
        cells = _pod_cells(item, now) if kind is PODS else [cell(item, column, now) for column in columns]
        row: Json = {"cells": [item["metadata"]["name"], *cells]}
        if include == "Object":
            row["object"] = item
        elif include == "Metadata":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"],
            }
        rows.append(row)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _definition(column: Column) -> Json:
    return {
        "name": column.name,
        "type": "string" if column.type == "date" else column.type,
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    }


def cell(item: Json, column: Column, now: float) -> Any:
    """One value: None where there is none; a date as how long ago."""
    found = read(item, column.path)
    if found is None or found == []:
        return None
    value = found[0] if isinstance(found, list) and len(found) == 1 else found
    if column.type == "date" or column is AGE:
        return ago(value, now)
    if column.type == "integer":
        return int(value) if isinstance(value, int | float) else None
    if column.type in ("number", "boolean"):
        return value
    return value if isinstance(value, str) else str(value)


def read(item: Any, path: str) -> Any:
    """The value at a simple JSON path; None where there is none."""
    for equal_at, equal, index, name in _STEP.findall(path):
        if item is None:
            return None
        if equal_at:
            item = next((each for each in item if str(read(each, "." + equal_at)) == equal), None)
        elif index:
            if not isinstance(item, list):
                return None
            item = item if index == "*" else (item[int(index)] if int(index) < len(item) else None)
        elif isinstance(item, list):
            item = [read(each, "." + name) for each in item]
        else:
            item = item.get(name.replace("\\", "")) if isinstance(item, dict) else None
    return item


def ago(stamp: str, now: float) -> str:
    """`5s`, `3m20s`, `2h5m`, `3d`."""
    try:
        then = datetime.datetime.fromisoformat(stamp).timestamp()
    except (ValueError, TypeError):
        return "<unknown>"
    seconds = max(0, int(now - then))
    if seconds < 120:
        return f"{seconds}s"
    if seconds < 600:
        return f"{seconds // 60}m{seconds % 60}s" if seconds % 60 else f"{seconds // 60}m"
    if seconds < 3 * 3600:
        return f"{seconds // 60}m"
    if seconds < 8 * 3600:
        minutes = seconds % 3600 // 60
        return f"{seconds // 3600}h{minutes}m" if minutes else f"{seconds // 3600}h"
    return f"{seconds // 3600}h" if seconds < 2 * 86400 else f"{seconds // 86400}d"


def _pod_cells(pod: Json, now: float) -> list[Any]:
    status = pod.get("status") or {}
    states = status.get("containerStatuses") or []
    ready = sum(1 for each in states if each.get("ready"))
    word = status.get("reason") or status.get("phase", "Unknown")
    for each in states:
        state = each.get("state") or {}
        if "waiting" in state:
            word = state["waiting"].get("reason") or word
        elif "terminated" in state:
            word = state["terminated"].get("reason") or word
    if pod["metadata"].get("deletionTimestamp"):
        word = "Terminating"
    restarts = sum(each.get("restartCount", 0) for each in states)
    total = len(pod["spec"].get("containers", []))
    age = ago(pod["metadata"]["creationTimestamp"], now)
    return [f"{ready}/{total}", word, restarts, age, status.get("podIP"), pod["spec"].get("nodeName")]
