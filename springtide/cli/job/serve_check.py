"""`springtide serve-check`: compares predictions of an export with predictions of its job."""

import contextlib
import importlib
import os
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from springtide import errors
from springtide.checkpoint.format.storage import open_store
from springtide.cli.common.options import RUNS, JsonOnly, Runs, verb
from springtide.cli.common.render import print_result, wrap
from springtide.cli.job import checkpoints, export
from springtide.launch import job_lookup

if TYPE_CHECKING:
    from springtide.export.serving_check import ServingCheck

DIFFERENT = 1


@verb("springtide serve-check train exports --model model:Clicks --inputs x.npz", name="serve-check")
def serve_check(
    job: Annotated[str, typer.Argument(help="Name of a job, or folder or URL of checkpoints.", metavar="JOB")],
    url: Annotated[str, typer.Argument(help="Folder or URL of the exports.", metavar="EXPORTS")],
    model: Annotated[
        str, typer.Option(help="Class or function, without arguments, that builds the model.", metavar="MODULE:NAME")
    ],
    inputs: Annotated[str, typer.Option(help="A batch, as the model gets it: .npz, .parquet or .pt.", metavar="FILE")],
    tolerance: Annotated[float, typer.Option(help="Largest difference that counts as equal.", min=0.0)] = 1e-5,
    number: Annotated[
        int | None, typer.Option("--export", help="Check this export.  [default: the newest]", metavar="N")
    ] = None,
    checkpoint: Annotated[
        int | None, typer.Option(help="Compare with this checkpoint.  [default: the export's own]", metavar="N")
    ] = None,
    folder: Runs = RUNS,
    as_json: JsonOnly = False,
) -> int:
    """Compare the predictions of an export with those of its job, and exit with 1 if they differ.

    The predictions of the job are computed in this process, from the checkpoint of which the export was made.
    """
    from springtide.export import export_folder, serving_check

    build = model_builder(model)
    batch = read_inputs(pathlib.Path(inputs))
    place = open_store(job if checkpoints.is_place(job) else str(job_lookup.pick_local(job, folder).files.checkpoints))
    found = export_folder.read(url, number)
    manifest = export.chosen_manifest(place, found.number if checkpoint is None else checkpoint)
    if manifest.job != found.job:
        raise errors.BadInput(
            f"export {found.number} at {url} is of job {found.job!r}, the checkpoints are of job {manifest.job!r}: "
            "compare an export with its own job"
        )
    with contextlib.redirect_stdout(sys.stderr):  # the model may print, but --json prints one object only
        checked = serving_check.compare(build, batch, place=place, manifest=manifest, found=found, tolerance=tolerance)
    print_result(text(checked), checked, as_json)
    return 0 if checked.equal else DIFFERENT


def model_builder(name: str) -> Callable[[], Any]:
    """Import `module:name`, as a script in the current folder would."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise errors.BadInput(
            f"--model {name}: expected MODULE:NAME, such as model:WideDeep for class WideDeep of model.py"
        )
    sys.path.insert(0, os.getcwd())
    try:
        with contextlib.redirect_stdout(sys.stderr):
            loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise errors.UserCodeFailed(
            f"--model {name}: module {module!r} cannot be imported: {type(error).__name__}: {error}. Run the command "
            "in the folder of the module; keep the model apart from the script that trains it"
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    made: Callable[[], Any] | None = getattr(loaded, attribute, None)  # a package may import its names at first use
    if not callable(made):
        known = [key for key in dir(loaded) if not key.startswith("_") and callable(getattr(loaded, key, None))]
        raise errors.UnknownName(f"class or function in {module}", attribute, known)
    return made


def read_inputs(path: pathlib.Path) -> Any:
    """Read a batch. Arrays of an .npz file and columns of a .parquet file become tensors by name."""
    import torch

    readers = {".npz": npz_arrays, ".parquet": parquet_columns, ".pt": None}
    if path.suffix not in readers:
        raise errors.BadInput(f"--inputs {path}: expected a file named *{', *'.join(readers)}")
    if not path.is_file():
        raise errors.MissingFile(f"--inputs {path}: no such file; expected one batch, as the model gets it in training")
    reader = readers[path.suffix]
    try:
        if reader is None:
            return torch.load(path, weights_only=True)
        arrays = reader(path)
    except errors.SpringtideError:
        raise
    except Exception as error:  # the errors of both formats differ
        raise errors.BadInput(f"--inputs {path} cannot be read: {type(error).__name__}: {error}") from error
    tensors = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "iufb":
            raise errors.BadInput(
                f"--inputs {path}: {name!r} is not an array of numbers; expected numbers, such as ids hashed by "
                "st.hash_ids, in lists of one length"
            )
        tensors[name] = torch.from_numpy(array)
    unnamed = [f"arr_{position}" for position in range(len(tensors))]
    # numpy.savez uses these names for arrays without a name
    return tuple(tensors[name] for name in unnamed) if set(unnamed) == set(tensors) else tensors


def npz_arrays(path: pathlib.Path) -> dict[str, Any]:
    import numpy as np

    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def parquet_columns(path: pathlib.Path) -> dict[str, Any]:
    import numpy as np

    try:
        from pyarrow import parquet
    except ImportError:
        raise errors.MissingExtra("an input as parquet", "parquet") from None
    table = parquet.read_table(path)
    columns = {}
    for name in table.column_names:
        values = table.column(name).to_numpy()
        if all(isinstance(value, np.ndarray) for value in values) and len({value.shape for value in values}) == 1:
            values = np.stack(values)
        columns[name] = np.array(values)
    return columns


def text(checked: "ServingCheck") -> list[str]:
    found = f"predictions of export {checked.export} and of job {checked.job} at checkpoint {checked.checkpoint}"
    if checked.equal:
        lines = wrap(
            f"{found} are equal: the largest of {checked.predictions:,} differences is {checked.largest_difference:.3g}"
        )
    else:
        lines = wrap(
            f"{found} differ by up to {checked.largest_difference:.3g}, more than {checked.tolerance:g}: prediction "
            f"{checked.worst} is {checked.of_job:.6g} in the job and {checked.of_export:.6g} in the export"
        )
    for name, ids in checked.tables.items():
        lines += wrap(f"table   {name}: {ids.ids:,} ids looked up, {ids.untrained:,} of them never trained")
    if checked.left_out:
        lines += wrap(
            f"note    no export has {', '.join(checked.left_out)}: both sides used the values with which "
            "--model built them"
        )
    return lines
