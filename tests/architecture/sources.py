"""The sources that the architecture tests look at: Python by syntax tree, C++ by line."""

import ast
import functools
import pathlib
import subprocess
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]


@functools.cache
def tracked() -> tuple[pathlib.Path, ...]:
    """Files that git tracks or would track; of a tree without git, all that are not build products."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listing.returncode == 0:
        found = [ROOT / line for line in listing.stdout.splitlines()]
        return tuple(path for path in found if path.is_file())
    skipped = {"build", "dist", "__pycache__"}
    return tuple(
        path
        for path in ROOT.rglob("*")
        if path.is_file() and not any(p.startswith(".") or p in skipped for p in path.relative_to(ROOT).parts)
    )


def python(*tops: str) -> list[pathlib.Path]:
    """Python files under the folders named."""
    return [p for p in tracked() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in tops]


def native() -> list[pathlib.Path]:
    """C++ files."""
    return [p for p in tracked() if p.suffix in {".h", ".inl", ".cpp"} and p.relative_to(ROOT).parts[0] == "cpp"]


@functools.cache
def tree(path: pathlib.Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(), filename=str(path))


@functools.cache
def nodes(path: pathlib.Path) -> tuple[ast.AST, ...]:
    """All nodes of the syntax tree of a file."""
    return tuple(ast.walk(tree(path)))


def docstring(path: pathlib.Path) -> str:
    """The docstring of a module, empty when it has none."""
    return ast.get_docstring(tree(path)) or ""


@functools.cache
def imports(path: pathlib.Path, *, begins: bool = False) -> frozenset[str]:
    """Full names of the modules that a file imports, wherever in the file, but not under TYPE_CHECKING; or only those
    that it `begins` with.
    """
    return frozenset(_imports_of(tree(path), begins=begins))


def _imports_of(node: ast.AST, *, begins: bool = False) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if begins and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _imports_of(child, begins=begins)


def short(path: pathlib.Path) -> str:
    """A path as people write it."""
    return str(path.relative_to(ROOT))
