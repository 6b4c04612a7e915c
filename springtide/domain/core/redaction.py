"""Pure. Redacts credentials from text for logs, events, status and errors. In doubtful cases, the module redacts the
text.

postgresql://brain:pw@db/brain              ->  postgresql://brain:hidden@db/brain
https://bucket/x?X-Amz-Signature=3f2a&v=1   ->  https://bucket/x?X-Amz-Signature=hidden&v=1
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "hidden"
SHORTEST = 8
"""Shortest known secret that `redact` searches for, in characters. A shorter value may be a common word, so `redact`
replaces it only where a name or a URL marks it as secret.
"""

_WORDS = (
    "password|passwd|passphrase|secret|token(?!iz)|credential|api[-_.]?key|access[-_.]?key|account[-_.]?key|"
    "private[-_.]?key|key[.]pem|signature|jaas|oauthbearer[.]config"
)
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
_EXACT_NAMES = ("sig", "pwd")
_PLACE_NAME = re.compile(r"(?:file|path|location|folder|dir)$", re.IGNORECASE)
_KEY_NAME = re.compile(r"(?:^|[-_.])key$", re.IGNORECASE)

_UNQUOTED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_URL_PASSWORD = re.compile(r"(://[^\s/:@\"'<>]*)(:)([^\s\"'<>]+)@")
"""Matches up to the last @, so that a password with unquoted special characters is redacted completely."""
_URL_TOKEN = re.compile(r"(https?://)()(?!hidden@)([^\s/:@\"'<>]+)@")
_PAIR = re.compile(
    rf"\b([\w.-]{{0,60}}(?:{_WORDS}|\b(?:sig|pwd)\b)[\w.-]{{0,60}})"
    r"(=|[\"']\s*:\s*(?=[\"']))(\"[^\"]*\"|'[^']*'|[^\s&\"']+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(bearer\s+)()([\w.~+/=-]{16,})", re.IGNORECASE)


def is_secret(name: str) -> bool:
    if _PLACE_NAME.search(name):
        return False
    return name.lower() in _EXACT_NAMES or _SECRET_NAME.search(name) is not None


def is_secret_variable(name: str) -> bool:
    """Return True if an environment variable of this name holds a secret. Names that end in KEY also count."""
    return is_secret(name) or _KEY_NAME.search(name) is not None


def redact(text: str, known: Collection[str] = ()) -> str:
    """Return the text without credentials. Values in `known` are redacted wherever they occur."""
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text)
        text = _URL_TOKEN.sub(rf"\1{HIDDEN}@", text)
    if "=" in text or ":" in text:
        text = _PAIR.sub(_hide_value, text)
    return _BEARER.sub(rf"\1{HIDDEN}", text)


def redact_all(value: Any, known: Collection[str] = ()) -> Any:
    """Redact every string in nested dicts, lists and tuples. If a name marks a value as secret, the whole value is
    replaced."""
    if isinstance(value, str):
        return redact(value, known)
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if isinstance(part, str) and part and is_secret(str(name)) else redact_all(part, known)
            for name, part in value.items()
        }
    return [redact_all(part, known) for part in value] if isinstance(value, list | tuple) else value


def redact_arguments(arguments: Sequence[str], known: Collection[str] = ()) -> tuple[str, ...]:
    """Redact a command line, including the value after an option such as --password."""
    shown, hide = [], False
    for argument in arguments:
        shown.append(HIDDEN if hide else redact(argument, known))
        hide = argument.startswith("-") and "=" not in argument and is_secret(argument)
    return tuple(shown)


def secrets_in(text: str) -> set[str]:
    """Return the credentials in a text, raw and URL-quoted."""
    patterns = (_URL_PASSWORD, _URL_TOKEN, _PAIR, _BEARER)
    return known_values(match[3].strip("\"'") for pattern in patterns for match in pattern.finditer(text))


def secrets_of_variables(variables: Mapping[str, str]) -> set[str]:
    """Return the credentials among environment variables, by variable name and in URLs."""
    named = {value for name, value in variables.items() if is_secret_variable(name)}
    return known_values(named).union(*(secrets_in(value) for value in variables.values()))


def known_values(values: Iterable[str]) -> set[str]:
    """Return the values that are long enough to search for, raw and URL-quoted."""
    long = {value for value in values if len(value) >= SHORTEST and value != HIDDEN and not value.startswith("/")}
    return long | {_quoted(value) for value in long}


def _quoted(value: str) -> str:
    return "".join(chr(byte) if chr(byte) in _UNQUOTED else f"%{byte:02X}" for byte in value.encode())


def _hide_value(match: "re.Match[str]") -> str:
    name, sign, value = match.groups()
    if not is_secret(name):
        return match[0]
    mark = value[0] if value[0] in "\"'" else ""
    return f"{name}{sign}{mark}{HIDDEN}{mark}"
