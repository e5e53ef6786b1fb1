"""YAML to documents, by the rules that Kubernetes reads YAML with, within bounds.

libyaml gives events, and this module builds values from them with a stack of its own, because the
ready-made loaders do three things that a server cannot have:

- they expand aliases without bound ("billion laughs"): here what aliases bring in is counted, at
  most ``ALIASED_NODES_MAX`` values;
- they recurse: here nesting ends at the caller's limit;
- they resolve scalars as YAML 1.1 in full, where ``22:22`` is the number 1342 and a time is no
  longer text. Here, as in Go, plain scalars are null, booleans (``yes``, ``on`` and ``y`` too),
  integers, floats, or text.

Keys become text, since JSON has no others. Repeated keys are reported together, with their lines,
as Go's strict decoder does: ``yaml: unmarshal errors:\\n  line 5: key "addressType" already set in
map``; the last one wins. ``parse_yaml`` reads the first document of a stream, ``parse_yaml_stream``
all of them within the same bounds. Merge keys (``<<``) are merged. What an alias stands for is
**shared** in the result: a caller that changes parts of it copies it first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import msgspec

#: parse events in a document: a bound for the time that a body of 3 MiB can take (about half a
#: second)
EVENTS_MAX: Final = 250_000
#: documents of a stream
DOCUMENTS_MAX: Final = 10_000
#: repeated keys that are reported
REPEATED_MAX: Final = 100
#: values that aliases may bring in, counted each time they are expanded; a long text counts as
#: several
ALIASED_NODES_MAX: Final = 100_000
_CHARACTERS_OF_A_VALUE: Final = 64
#: ``%TAG`` and the like before a document, each of which libyaml compares with all before it
DIRECTIVES_MAX: Final = 100
_DIRECTIVE: Final = re.compile("(?:^|[\r\n\x85\u2028\u2029])%")
_DOCUMENT_START: Final = re.compile("[\r\n\x85\u2028\u2029]---")

_NULLS: Final = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEANS: Final = {
    **dict.fromkeys(
        ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True
    ),
    **dict.fromkeys(
        ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False
    ),
}
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_BASED: Final = re.compile(r"([-+]?)0(?:b([01_]+)|x([0-9a-fA-F_]+)|o?([0-7_]+))")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_DIGITS_MAX: Final = 400

_TAG: Final = "tag:yaml.org,2002:"


class YamlError(Exception):
    """The stream is no YAML that a document can be made of; the text is worded like Go's. ``line``
    is where, 0 where the text says it or no line is to blame.
    """

    def __init__(self, text: str, line: int = 0) -> None:
        super().__init__(text)
        self.line = line

    @property
    def placed(self) -> str:
        """The text with the line in it."""
        text = str(self)
        return text.replace("yaml: ", f"yaml: line {self.line}: ", 1) if self.line else text


class ParsedYaml(msgspec.Struct, frozen=True):
    """``value`` is ``None`` for an empty stream; ``problems`` has at most one text."""

    value: Any
    problems: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Open:
    """A collection whose end has not been read."""

    value: dict[str, Any] | list[Any]
    line: int
    anchor: str | None
    is_merge: bool = False
    #: of a mapping: the key that waits for its value
    key: str | None = None
    #: of a mapping: values of ``<<``, to be put under the others at the end
    merges: list[Any] = field(default_factory=list)


class _Measure(msgspec.Struct, frozen=True):
    """Values in a value, itself included, and levels of collections, with every alias expanded."""

    nodes: int
    height: int


_SCALAR: Final = _Measure(nodes=1, height=0)


def _weight(text: str) -> int:
    """Returns the values that a long text counts as, beyond one."""
    return len(text) // _CHARACTERS_OF_A_VALUE


def parse_yaml(raw: bytes, *, depth_max: int) -> ParsedYaml:
    """The first document of *raw*.  Raises ``YamlError``."""
    return next(_parsed(raw, _Builder(depth_max, EVENTS_MAX)), ParsedYaml(None, ()))


def parse_yaml_stream(
    raw: bytes, *, depth_max: int, events_max: int = EVENTS_MAX, documents_max: int = DOCUMENTS_MAX
) -> tuple[ParsedYaml, ...]:
    """All documents of *raw*; they share the bounds of events and of what aliases bring in.  Raises
    ``YamlError``.
    """
    documents: list[ParsedYaml] = []
    for parsed in _parsed(raw, _Builder(depth_max, events_max), whole=True):
        if len(documents) == documents_max:
            raise YamlError(f"yaml: more than {documents_max} documents")
        documents.append(parsed)
    return tuple(documents)


def _parsed(raw: bytes, builder: _Builder, *, whole: bool = False) -> Iterator[ParsedYaml]:
    import yaml  # 15 ms of start-up that only YAML bodies should cost

    try:
        text = raw.decode("utf-8")
        _check_directives(text, whole=whole)
        # The pure Python parser has the same events, for platforms whose PyYAML comes without
        # libyaml.
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if builder.on_event(event):
                yield builder.take_document()
    except UnicodeDecodeError:
        raise YamlError("yaml: invalid UTF-8") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise YamlError(f"yaml: {line}{error.problem or error.context}") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise YamlError(
            f"yaml: {getattr(error, 'reason', None) or 'control characters are not allowed'}"
        ) from None


def _check_directives(text: str, *, whole: bool) -> None:
    start = None if whole else _DOCUMENT_START.search(text)
    end = len(text) if start is None else start.start()
    if next(islice(_DIRECTIVE.finditer(text, 0, end), DIRECTIVES_MAX, None), None) is not None:
        raise YamlError("yaml: document has too many directives")


class _Builder:
    """Events in, one value a document out.  Owned by one call."""

    def __init__(self, depth_max: int, events_max: int) -> None:
        self.root: Any = None
        self.repeated: list[str] = []
        self._depth_max = depth_max
        self._events_max = events_max
        self._open: list[_Open] = []
        #: how many open collections each anchor is of
        self._opening: dict[str, int] = {}
        self._anchors: dict[str, Any] = {}
        self._measures: dict[int, _Measure] = {}
        self._aliased = 0
        self._events = 0

    def take_document(self) -> ParsedYaml:
        """The document that has ended; what follows is another, whose anchors are its own."""
        problems = (
            ("yaml: unmarshal errors:\n" + "\n".join(self.repeated),) if self.repeated else ()
        )
        taken = ParsedYaml(self.root, problems)
        self.root = None
        self.repeated = []
        self._anchors.clear()
        self._measures.clear()
        return taken

    def on_event(self, event: Any) -> bool:
        """True when the document has ended."""
        self._events += 1
        if self._events > self._events_max:
            raise YamlError("yaml: document contains too many values", event.start_mark.line + 1)
        match type(event).__name__:
            case "ScalarEvent":
                self._scalar(event)
            case "MappingStartEvent":
                self._start({}, event)
            case "SequenceStartEvent":
                self._start([], event)
            case "MappingEndEvent" | "SequenceEndEvent":
                self._end()
            case "AliasEvent":
                self._alias(event)
            case "DocumentEndEvent":
                return True
        return False

    def _start(self, value: dict[str, Any] | list[Any], event: Any) -> None:
        line = event.start_mark.line + 1
        if len(self._open) >= self._depth_max:
            raise YamlError(f"yaml: line {line}: exceeded max depth")
        parent = self._open[-1] if self._open else None
        if parent is not None and isinstance(parent.value, dict) and parent.key is None:
            raise YamlError(f"yaml: line {line}: invalid map key")
        self._open.append(_Open(value, line, event.anchor))
        if event.anchor:
            self._opening[event.anchor] = self._opening.get(event.anchor, 0) + 1

    def _end(self) -> None:
        done = self._open.pop()
        value = done.value
        if isinstance(value, dict):
            for merged in done.merges:
                for key, member in merged.items():
                    value.setdefault(key, member)
        if done.anchor:
            self._anchors[done.anchor] = value
            self._opening[done.anchor] -= 1
        # Every collection is measured when it ends, from the measures of its children, so that no
        # chain of aliases is ever walked out.
        children = [
            self._measure(child) for child in (value.values() if isinstance(value, dict) else value)
        ]
        names = sum(map(_weight, value)) if isinstance(value, dict) else 0
        self._measures[id(value)] = _Measure(
            nodes=1 + names + sum(child.nodes for child in children),
            height=1 + max((child.height for child in children), default=0),
        )
        self._put(value, done.line)

    def _measure(self, value: Any) -> _Measure:
        if isinstance(value, dict | list):
            return self._measures[id(value)]
        extra = _weight(value) if isinstance(value, str) else 0
        return _Measure(nodes=1 + extra, height=0) if extra else _SCALAR

    def _scalar(self, event: Any) -> None:
        line = event.start_mark.line + 1
        parent = self._open[-1] if self._open else None
        if parent is not None and isinstance(parent.value, dict) and parent.key is None:
            plain = event.implicit[0]
            parent.is_merge = plain and event.value == "<<"
            parent.key = _key_text(_resolve(event, line))
            if event.anchor:
                self._anchors[event.anchor] = parent.key
            return
        value = _resolve(event, line)
        if event.anchor:
            self._anchors[event.anchor] = value
        self._put(value, line)

    def _alias(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if self._opening.get(event.anchor):
            raise YamlError(f"yaml: anchor '{event.anchor}' value contains itself")
        if event.anchor not in self._anchors:
            raise YamlError(f"yaml: unknown anchor '{event.anchor}' referenced")
        value = self._anchors[event.anchor]
        measure = self._measure(value)
        if len(self._open) + measure.height > self._depth_max:
            raise YamlError(f"yaml: line {line}: exceeded max depth")
        self._aliased += measure.nodes
        if self._aliased > ALIASED_NODES_MAX:
            raise YamlError("yaml: document contains excessive aliasing", line)
        parent = self._open[-1] if self._open else None
        if parent is not None and isinstance(parent.value, dict) and parent.key is None:
            if isinstance(value, dict | list):
                raise YamlError(f"yaml: line {line}: invalid map key")
            parent.key = _key_text(value)
            return
        self._put(value, line)

    def _put(self, value: Any, line: int) -> None:
        if not self._open:
            self.root = value
            return
        parent = self._open[-1]
        if isinstance(parent.value, list):
            parent.value.append(value)
            return
        key = parent.key
        assert key is not None, "a collection is refused as a key when it starts"
        parent.key = None
        if parent.is_merge:
            parent.is_merge = False
            parents = value if isinstance(value, list) else [value]
            if not all(isinstance(part, dict) for part in parents):
                raise YamlError(
                    f"yaml: line {line}: map merge requires map or sequence of maps as the value"
                )
            parent.merges.extend(parents)
            return
        if key in parent.value and len(self.repeated) < REPEATED_MAX:
            self.repeated.append(f'  line {line}: key "{key}" already set in map')
        parent.value[key] = value


def _resolve(event: Any, line: int) -> Any:
    """The value of a scalar: by its tag if it has one, by its spelling if it is plain, else its
    text.
    """
    text = event.value
    tag = event.tag
    if tag is None or tag == "!":
        return _resolve_plain(text) if event.implicit[0] and tag is None else text
    match tag.removeprefix(_TAG):
        case "str" | "binary" | "timestamp":
            return text
        case "null" | "bool" | "int" | "float" as wanted:
            value = _resolve_plain(text)
            good = {"null": value is None, "bool": isinstance(value, bool)}.get(
                wanted, isinstance(value, int | float) and not isinstance(value, bool)
            )
            if not good:
                raise YamlError(f"yaml: line {line}: cannot decode !!str `{text}` as a !!{wanted}")
            return float(value) if wanted == "float" else value
        case _:
            return _resolve_plain(text) if event.implicit[0] else text


def _resolve_plain(text: str) -> Any:
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "+-.0123456789" or len(text) > _DIGITS_MAX:
        return text
    if _INTEGER.fullmatch(text):
        return int(text.replace("_", ""))
    based = _BASED.fullmatch(text)
    if based is not None:
        sign, *digits = based.groups()
        for base, number_text in zip((2, 16, 8), digits, strict=True):
            if number_text and number_text.strip("_"):
                return int(sign + number_text.replace("_", ""), base)
    if _FLOAT.fullmatch(text):
        return _finite(float(text.replace("_", "")))
    if _SPECIAL_FLOAT.fullmatch(text):
        raise YamlError(f"json: unsupported value: {text}")
    return text


def reads_as_text(text: str) -> bool:
    """Returns True if *text*, written plain, is read as itself. (Go and we read ``n`` and ``1e3``
    as no text; PyYAML does.)
    """
    try:
        return isinstance(_resolve_plain(text), str)
    except YamlError:
        return False


def _finite(value: float) -> float:
    if value in {float("inf"), float("-inf")}:
        raise YamlError("json: unsupported value: +Inf")
    return value


def _key_text(value: Any) -> str:
    """A scalar key as the name of a JSON member."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case None:
            return "null"
        case _:
            return repr(value)
