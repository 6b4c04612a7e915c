"""Removes credentials in this process's environment and in the job's variables from all that is shown."""

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from springtide import config
from springtide.domain.core import redaction

_remembered: set[str] = set()
_own: set[str] | None = None


def remember(*texts: str, variables: Mapping[str, str] | None = None) -> None:
    """Hide credentials in these texts, such as a job's spec, and in these variables from now on."""
    for text in texts:
        _remembered.update(redaction.secrets_in(text))
    _remembered.update(redaction.secrets_of_variables(variables or {}))


def redact(text: str) -> str:
    return redaction.redact(text, _known()) if text else text


def redact_all(value: Any) -> Any:
    """Redact every text within dicts, lists and tuples."""
    return redaction.redact_all(value, _known())


def redact_arguments(arguments: Sequence[str]) -> tuple[str, ...]:
    return redaction.redact_arguments(arguments, _known())


def option_pairs(arguments: Sequence[str]) -> list[str]:
    """Return the arguments, plus each option joined with its value as `--option=value`, so that secrets are found."""
    pairs = [f"{name}={value}" for name, value in itertools.pairwise(arguments) if name.startswith("-")]
    return [*arguments, *pairs]


class RedactingFormatter(logging.Formatter):
    """Log formatter that redacts log lines and tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _known() -> set[str]:
    global _own
    if _own is None:
        _own = redaction.secrets_of_variables(config.variables())
    return _own | _remembered
