"""YAML in and out, limited to what JSON can say; PyYAML is loaded by the first request that needs it.

Reading follows sigs.k8s.io/yaml: YAML 1.1 scalars, except that dates stay text; keys become strings; only the
first document counts.  Writing sorts keys, as upstream's encoder does.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from sliceplane.api.meta import Document


class YamlError(ValueError):
    """Not readable; the text is a parser's, for the client."""


@cache
def _loader() -> Any:
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[misc]  # the C loader has no stub
        """Counts duplicate keys instead of passing over them; has no dates."""

        def __init__(self, stream: bytes) -> None:
            super().__init__(stream)
            self.problems: list[str] = []

    def mapping(loader: Any, node: Any) -> dict[str, Any]:
        loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _key(loader.construct_object(key_node, deep=True))
            if key in found:
                line = key_node.start_mark.line + 1
                loader.problems.append(f'line {line}: key "{key}" already set in map')
            found[key] = loader.construct_object(value_node, deep=True)
        return found

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))
    return Loader


def _key(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)


def load(raw: bytes) -> tuple[Any, tuple[str, ...]]:
    """The first document and what a strict reader complains of.  Raises ``YamlError``."""
    import yaml

    try:
        loader = _loader()(raw)
        try:
            value = loader.get_data() if loader.check_data() else None
            problems = loader.problems
        finally:
            loader.dispose()
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise YamlError("yaml: " + re.sub(r"\s+", " ", str(error))) from error
    if problems:
        return value, ("yaml: unmarshal errors:\n" + "\n".join(f"  {problem}" for problem in problems),)
    return value, ()


def dump(document: Document) -> bytes:
    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(document, Dumper=dumper, allow_unicode=True, width=1 << 30, default_flow_style=False)
    return text.encode()
