"""YAML and JSON files: configurations with one document, manifests with many.

The number of values bounds the memory of a file, not only its bytes: ``[[],[],...`` takes twenty
times its length, a YAML alias any multiple. The bounds are checked before decoding.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from sliceplane.kit.io.files import CONFIG_BYTES_MAX, decoded, read_bytes
from sliceplane.kit.yaml_documents import YamlError, parse_yaml_stream

#: levels of lists and mappings; an API server takes 10,000, but no object has 50
DEPTH_MAX: Final = 100
#: maximum values of a YAML manifest, about 100 bytes of memory and 3 microseconds each; larger ones
#: must be JSON
YAML_EVENTS_MAX: Final = 1_000_000
#: maximum values of a JSON manifest, at most 72 bytes each
JSON_VALUES_MAX: Final = 4_000_000
#: maximum values of a configuration
CONFIG_EVENTS_MAX: Final = 100_000
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_VALUES_OF_JSON: Final = (b",", b"[", b"{")


class BadDocument(ValueError):
    """The reason why *raw* is no YAML or JSON within the bounds, as a sentence, with the line if
    there is one.
    """


def config_document(path: Path) -> Any:
    """Returns the only document of *path*; ``None`` if it is empty. Raises ``OSError`` and
    ``BadDocument``.
    """
    raw = read_bytes(path, CONFIG_BYTES_MAX)
    decoded(raw, path)
    documents = _yaml_documents(raw, CONFIG_EVENTS_MAX)
    if len(documents) > 1:
        raise BadDocument("it has more than one document")
    return documents[0] if documents else None


def manifest_documents(raw: bytes) -> list[Any]:
    """Returns the documents of *raw* that are not empty. Raises ``BadDocument``."""
    if raw.lstrip()[:1] in (b"{", b"["):
        if sum(map(raw.count, _VALUES_OF_JSON)) > JSON_VALUES_MAX:
            raise BadDocument(f"it has more than {JSON_VALUES_MAX:,} values")
        try:
            return [msgspec.json.decode(raw)]
        except (ValueError, RecursionError) as error:
            syntax = error  # JSON with comments, or several documents, is YAML
        if len(raw) > CONFIG_BYTES_MAX:
            raise BadDocument(_placed(raw, syntax)) from syntax
    return [document for document in _yaml_documents(raw, YAML_EVENTS_MAX) if document is not None]


def _placed(raw: bytes, error: Exception) -> str:
    """Returns the text of a JSON decoder's *error*, with a line instead of a byte offset."""
    match = _BYTE.search(str(error))
    if match is None:
        return str(error)
    line = raw.count(b"\n", 0, int(match[1])) + 1
    return f"line {line}: {str(error)[: match.start()].strip()}"


def _yaml_documents(raw: bytes, events_max: int) -> list[Any]:
    try:
        parsed = parse_yaml_stream(raw, depth_max=DEPTH_MAX, events_max=events_max)
    except YamlError as error:
        raise BadDocument(error.placed.removeprefix("yaml: ")) from error
    problems = [
        line.strip()
        for document in parsed
        for problem in document.problems
        for line in problem.splitlines()
    ]
    if problems:
        raise BadDocument("; ".join(problems[1:6]))
    return [document.value for document in parsed]
