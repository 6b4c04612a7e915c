"""`springtide export`: the newest checkpoint of a job as files for serving."""

import functools
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box, console, table
from rich.progress import Progress, TaskID

from springtide import errors
from springtide.checkpoint.format import checkpoint_io
from springtide.checkpoint.format.manifest import Manifest
from springtide.checkpoint.format.storage import FileStore, open_store
from springtide.cli.common.options import RUNS, Json, Runs, verb
from springtide.cli.common.render import print_json
from springtide.cli.job import checkpoints
from springtide.domain.core import validation
from springtide.launch import export_process, job_lookup

if TYPE_CHECKING:
    from springtide.export import export_folder


@verb(
    "springtide export train exports              tables and dense tensors",
    "springtide export train exports --since 7    changes since export 7",
    "springtide export train exports --since last",
    "springtide export train exports --since samples:1000000",
    "springtide export train exports --every 5m   again every five minutes",
)
def export(
    job: Annotated[str, typer.Argument(help="Name of a job, or folder or URL of checkpoints.", metavar="JOB")],
    url: Annotated[str, typer.Argument(help="Destination: a folder, or any URL that fsspec knows.", metavar="URL")],
    since: Annotated[
        str, typer.Option(help="Export only changes since export N, last, samples:N or step:N.", metavar="N")
    ] = "",
    checkpoint: Annotated[
        int | None, typer.Option(help="Export this checkpoint.  [default: the newest]", metavar="N")
    ] = None,
    every: Annotated[str, typer.Option(help="Export again after this time: 300, 5m or 1h.", metavar="TIME")] = "",
    format: Annotated[str, typer.Option(help="Format of the tables: safetensors or parquet.")] = "safetensors",
    folder: Runs = RUNS,
    as_json: Json = False,
) -> int:
    """Export the newest checkpoint of a job, running or finished: keys and rows of every table, and a dense state
    dict."""
    from springtide.export import exporter, table_files

    chosen = validation.choice(format, "format", table_files.FORMATS)
    where = job if checkpoints.is_place(job) else str(job_lookup.pick_local(job, folder).files.checkpoints)
    if every:
        if since or checkpoint is not None or as_json:
            raise errors.BadInput(
                "--every chooses what to export by itself: leave out --since, --checkpoint and --json"
            )
        return export_process.follow(where, url, every_s=validation.parse_duration("--every", every), format=format)
    place = open_store(where)
    manifest, card = chosen_manifest(place, checkpoint), None
    while card is None:
        built_on = base(since, url, manifest) if since else None
        try:
            with Progress(console=console.Console(stderr=True), transient=True) as bar:
                task = bar.add_task(f"checkpoint {manifest.number}", total=manifest.slots)
                card = exporter.make(
                    place, manifest, url, format=chosen, since=built_on, progress=functools.partial(showing, bar, task)
                )
        except checkpoint_io.DamagedImage as error:
            if checkpoint is not None:
                raise
            warn(f"checkpoint {manifest.number} in {place.where} cannot be used: {error}")
            manifest = chosen_manifest(place, None, before=manifest.number)
    show(card, url)
    print_json(card, as_json)
    return 0


def showing(bar: Progress, task: TaskID, slot: int) -> None:
    bar.update(task, completed=slot + 1)


def warn(message: str) -> None:
    console.Console(stderr=True).print(f"warning: {message}", style="yellow", highlight=False)


def base(since: str, url: str, manifest: Manifest) -> int:
    """Return the number of the export that a delta builds on. Print the number if `--since` gave
    something else."""
    from springtide.export import export_folder, exporter

    moment = exporter.parse_since(since)
    if moment.unit == "export":
        return moment.count
    cards = [export_folder.read_card(url, number) for number in export_folder.numbers(url)]
    number = exporter.base_of(moment, cards, before=manifest.number)
    chosen = next(card for card in cards if card.number == number)
    at = f"step {chosen.step:,}, " if chosen.step else ""
    console.Console(stderr=True).print(f"since {since}: on export {number} ({at}{chosen.samples:,} samples)")
    return number


def chosen_manifest(place: FileStore, checkpoint: int | None, *, before: int | None = None) -> Manifest:
    known = checkpoint_io.numbers(place)
    if checkpoint is not None:
        if checkpoint not in known:
            raise errors.MissingFile(f"no checkpoint {checkpoint} in {place.where}; there: {known or 'none'}")
        return checkpoint_io.read(place, checkpoint)
    found = checkpoint_io.latest(place, (), before=before)
    for trouble in found.troubles:
        warn(trouble)
    if found.manifest is None and known:
        raise errors.MissingFile(f"none of the checkpoints in {place.where} can be used")
    if found.manifest is None:
        raise errors.MissingFile(f"no checkpoint in {place.where}; a running job makes its first checkpoint soon")
    return found.manifest


def show(card: "export_folder.ExportCard", url: str) -> None:
    from springtide.export.export_folder import folder_name

    what = f"export {card.number}" if card.since is None else f"export {card.number}, changes since {card.since}"
    drawn = table.Table(title=f"{what}: {url.rstrip('/')}/{folder_name(card.number)}", box=box.SIMPLE_HEAD)
    for column in ("table", "rows", "removed", "dim", "file"):
        drawn.add_column(column, justify="right" if column in ("rows", "removed", "dim") else "left")
    for exported in card.tables:
        drawn.add_row(
            exported.outline.name, f"{exported.keys:,}", f"{exported.removed:,}", str(exported.dim), exported.file
        )
    console.Console().print(drawn)
    step = f"step {card.step:,}, " if card.step else ""
    print(f"{step}{card.samples:,} samples trained; dense tensors in dense.pt; left out: {len(card.left_out)}")
