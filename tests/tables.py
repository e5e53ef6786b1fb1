"""Tables of tests as data: ``tables/NAME.yaml`` beside ``test_NAME.py`` has one for each test that
has many rows. ``!of KEY`` stands for a resource of the scheme, ``!bytes TEXT`` for its bytes,
``!times [VALUE, NUMBER]`` for a value that often.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from sliceplane.api.scheme import by_key


class Loader(yaml.CSafeLoader):
    """Reads plain data, and resources by their key."""


def _resource(_loader: Loader, node: yaml.ScalarNode) -> Any:
    resource = by_key(node.value)
    assert resource is not None, node.value
    return resource


Loader.add_constructor("!of", _resource)


def _repeated(loader: Loader, node: yaml.SequenceNode) -> Any:
    value, times = loader.construct_sequence(node, deep=True)
    return value * times


Loader.add_constructor("!times", _repeated)
Loader.add_constructor("!bytes", lambda _loader, node: node.value.encode())


def tables(test_file: str) -> dict[str, Any]:
    """The tables of a file of tests, by name."""
    path = Path(test_file)
    file = path.parent / "tables" / f"{path.stem.removeprefix('test_')}.yaml"
    return yaml.load(file.read_text(encoding="utf-8"), Loader)  # type: ignore[no-any-return]
