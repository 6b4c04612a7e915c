"""Lists the checkpoints of a job or of a place: time, size, outcome and location of each.

In: the events of a job, and manifests. Checking compares the sizes of all files with the manifest; verifying compares
all bytes with their checksums. Next: `springtide checkpoints` and the dashboard show the list.
"""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import Manifest, name_of
from springtide.checkpoint.format.storage import FileStore, FolderStore

Event = dict[str, Any]

EMPTY: dict[str, Any] = {
    **dict.fromkeys(("outcome", "kind", "where", "uploaded", "mirror", "why"), ""),
    **dict.fromkeys(("number", "bytes", "samples"), 0),
    **dict.fromkeys(("at", "seconds"), 0.0),
}
"""Fields of a checkpoint in the JSON output, each with its value for "unknown"."""


def at_place(place: FileStore, *, verify: bool = False) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for number in sorted(checkpoint_io.numbers(place)):
        uploaded = place.where if "://" in place.where else ""
        row = EMPTY | {"number": number, "outcome": "complete", "where": place.where, "uploaded": uploaded, "run": ""}
        state = state_of(place, number, verify=verify)
        if state is None:
            continue
        row |= state.shown
        if state.manifest is not None:
            manifest = state.manifest
            row |= {
                "at": manifest.begun_at,
                "kind": "full" if manifest.full else "incremental",
                "bytes": manifest.bytes_written,
                "seconds": manifest.completed_at - manifest.begun_at,
                "samples": manifest.progress.samples,
                "run": manifest.run,
            }
        found.append(row)
    return found


class CheckpointState(NamedTuple):
    """Present state of a checkpoint's files."""

    manifest: Manifest | None
    """Manifest of the checkpoint; None if the checkpoint cannot be used."""
    why: str = ""
    """Why the checkpoint cannot be used, or which files were not checked."""
    verified: bool = False

    @property
    def shown(self) -> dict[str, Any]:
        apart = sorted(self.manifest.apart) if self.manifest is not None else []
        shown = {"kept": self.manifest is not None, "apart": apart, "verified": self.verified}
        damaged = {"outcome": "damaged"} if self.manifest is None else {}
        return shown | damaged | ({"why": self.why} if self.why else {})


def state_of(place: FileStore, number: int, *, verify: bool) -> CheckpointState | None:
    """Check a checkpoint by file sizes, or by checksums with `verify`. Return None if the checkpoint no longer
    exists."""
    try:
        manifest = checkpoint_io.known(place, number)
        if verify and manifest.apart:
            return CheckpointState(
                manifest, f"not verified: files are on the disks of {', '.join(sorted(manifest.apart))}"
            )
        if verify:
            checkpoint_io.verify(place, manifest, range(manifest.slots))
        return CheckpointState(manifest, verified=verify)
    except (errors.BadInput, OSError) as error:
        # the job has deleted the checkpoint, because a newer one exists
        gone = number not in checkpoint_io.numbers(place)
        return None if gone else CheckpointState(None, str(error))


def listed(story: Sequence[Event], *, verify: bool = False) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for event in story:
        if event["event"] == "checkpoint" and event["outcome"] != "skipped":
            mirror = event.get("mirror", "complete")
            found[event["number"]] = {
                **EMPTY,
                **{name: event[name] for name in EMPTY if name in event},
                "number": event["number"],
                "at": event.get("begun_at", event["at"]),
                "kind": "" if "full" not in event else "full" if event["full"] else "incremental",
                "kept": False,
                "apart": [],
                "verified": False,
                "why": event.get("why", "") or (f"without a mirror: {mirror}" if mirror != "complete" else ""),
            }
        elif event["event"] == "uploaded" and event["number"] in found:
            row = found[event["number"]]
            row["uploaded"] = event["url"] if event["outcome"] == "complete" else ""
            if event["outcome"] != "complete":
                row["why"] = f"not copied to {event['url']}: {event['why']}"
        elif event["event"] == "ready":
            # a server reported that it could not restore its slots from these checkpoints
            for message in event.get("unusable", ()):
                for row in found.values():
                    if message.startswith(f"checkpoint {row['number']} in "):
                        row |= {"outcome": "damaged", "why": message}
    for row in found.values():
        if row["outcome"] == "complete" and pathlib.Path(row["where"], name_of(row["number"])).is_file():
            state = state_of(FolderStore(pathlib.Path(row["where"])), row["number"], verify=verify)
            row |= state.shown if state is not None else {}
    return [found[number] for number in sorted(found)]
