"""A program that uses a public package, and the lines that make it a job's script.

In: the program's text, and `Change`s by the text of a line. Out: the text for a job. `check` compares the installed
package with the version for which the lines were written.
"""

import difflib
import hashlib
import pathlib
from dataclasses import dataclass

from springtide import errors


@dataclass(frozen=True, slots=True)
class Change:
    """Lines that take the place of one line of the program. To insert lines, repeat the replaced line as the last of
    these lines.
    """

    line: str
    """Start of the line, without its indent. Exactly one line of the program begins with this text."""
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that trains a model of a public package. The arguments of the program are a file of clicks, a seed, and
    the file to which it writes the AUC of its test samples.
    """

    name: str
    package: str
    """Requirement for pip, with the version that was ported."""
    needs: tuple[str, ...]
    """Further packages that pip must install with the package."""
    source: str
    """File of the package with the training loop, relative to the folder of packages."""
    sha256: str
    """SHA-256 of that file."""
    text: str
    changes: tuple[Change, ...]
    epochs: int

    @property
    def ported(self) -> str:
        """The program's text with its changes."""
        lines = self.text.splitlines()
        for change in self.changes:
            places = [place for place, line in enumerate(lines) if line.lstrip().startswith(change.line)]
            if len(places) != 1:
                raise errors.BadInput(
                    f"port of {self.name}: {len(places)} lines start with {change.line!r}; expected one"
                )
            indent = lines[places[0]][: -len(lines[places[0]].lstrip())]
            lines[places[0] : places[0] + 1] = [indent + line for line in change.lines]
        return "\n".join(lines) + "\n"

    @property
    def changed_lines(self) -> int:
        """Number of lines that were added or replaced."""
        compared = difflib.ndiff(self.text.splitlines(), self.ported.splitlines())
        return sum(line.startswith("+ ") for line in compared)

    def check(self, folder: pathlib.Path) -> None:
        """Raise unless the folder has the package in the version that was ported."""
        path = folder / self.source
        install = f"pip install --no-deps --target {folder} {' '.join((self.package, *self.needs))}"
        if not path.is_file():
            raise errors.MissingFile(f"{path} does not exist; install {self.name} there: {install}")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.sha256:
            raise errors.BadInput(
                f"{path} is of another version of {self.name}: its SHA-256 begins with {found[:12]}, the ported "
                f"{self.package} has {self.sha256[:12]}. Install that version: {install}"
            )
