"""The Python half of msgspec that the agent's file carries behaves as the library: same values,
same texts.
"""

import os
import subprocess
import sys
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.release.pure import msgspec as pure
from tools.release.running import ROOT

BOTH = (msgspec, pure)


class Pair(NamedTuple):
    left: int
    right: str = "r"


def classes(library: ModuleType) -> dict[str, Any]:
    """Types as the agent's modules use them, made with one library."""

    class Camel(
        library.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False
    ):  # type: ignore[misc, name-defined]
        pass

    class Meta(Camel, frozen=True, kw_only=True):
        name: str = ""
        resource_version: str = ""
        labels: dict[str, str] | None = None
        finalizers: tuple[str, ...] | None = None

    class Thing(Camel, frozen=True, kw_only=True):
        metadata: Meta = Meta()
        ip: str = library.field(name="clusterIP", default="")
        ports: tuple[Annotated[int, library.Meta(ge=1, le=65535)], ...] | None = None

    class Needs(library.Struct, forbid_unknown_fields=True):  # type: ignore[misc, name-defined]
        first: int
        second: float = 0.5
        items: list[int] = []
        raw: library.Raw = library.Raw(b"null")

        def __post_init__(self) -> None:
            if self.first < 0:
                raise ValueError("first is negative")

    class Row(library.Struct, array_like=True, frozen=True, rename="kebab"):  # type: ignore[misc, name-defined]
        first_name: str
        age: int = 7

    made_at_run_time = library.defstruct(
        "Made", [("f0", int | None, None)], rename={"f0": "continue"}, forbid_unknown_fields=True
    )
    return {
        "Thing": Thing,
        "Needs": Needs,
        "Row": Row,
        "Made": made_at_run_time,
        "Pair": Pair,
        "int": int,
        "float": float,
        "str": str,
        "bool": bool,
        "any": Any,
        "bytes": bytes,
        "ints": list[int],
        "things": dict[str, list[Needs]],
        "word": Literal["a", "b"],
        "either": str | dict[str, int] | None,
        "optional": str | None,
        "nested": Annotated[int | str, library.Meta(description="d")] | None,
        "two": tuple[str, int],
        "big": Annotated[int, library.Meta(le=5)],
        "matched": Annotated[str, library.Meta(pattern="^a")],
        "raws": dict[str, library.Raw],
    }


BY_LIBRARY = {library: classes(library) for library in BOTH}
TEXTS = [
    b"1",
    b"1.0",
    b"1.5",
    b"-3",
    b"7",
    b"true",
    b"null",
    b'"a"',
    b'"q"',
    b'"ba"',
    b'"YWI="',
    b'"\\u00e9\\n"',
    b"[]",
    b"{}",
    b"[1,2]",
    b'[1,"a"]',
    b'["a",1]',
    b'["a"]',
    b'["a","b","c"]',
    b'{"a":1}',
    b'{"a":"x"}',
    b'{"1":2}',
    b'{"metadata":{"name":"w","resourceVersion":"5","labels":{"a":"b"},"finalizers":["f"]},"clusterIP":"::1"}',
    b'{"metadata":{"name":1}}',
    b'{"metadata":{"labels":{"a":null}}}',
    b'{"metadata":null}',
    b'{"ports":[0]}',
    b'{"ports":[80,443],"unknown":{"x":[]}}',
    b'{"first":1}',
    b'{"first":-1}',
    b'{"first":1,"other":2}',
    b'{"first":1,"second":2,"items":[3],"raw":{"b":[1]}}',
    b'{"second":1}',
    b'{"continue":3}',
    b'{"continue":null}',
    b'{"k":[{"first":1},{"first":"x"}]}',
    b'["n"]',
    b'["n",3]',
    b'["n",3,"more"]',
]


def outcome(library: ModuleType, kind: str, text: bytes, *, convert: bool) -> str:
    """The value as JSON and as text, or the error."""
    target = BY_LIBRARY[library][kind]
    try:
        if convert:
            value = library.convert(msgspec.json.decode(text), target)
        else:
            value = library.json.Decoder(target).decode(text)
    except library.ValidationError as error:
        return f"{isinstance(error, ValueError)} {type(error).__name__}: {error}"
    shown = "" if "raw" in kind or kind == "Needs" else repr(value)
    return f"{shown} {library.json.encode(value).decode()} {type(value).__name__}"


#: kinds, and whether plain data is converted, which has neither bytes nor ``Raw``; else text is
#: decoded
READINGS = [
    (kind, convert)
    for kind in BY_LIBRARY[pure]
    for convert in ((False,) if kind in ("bytes", "raws") else (False, True))
]


@pytest.mark.parametrize(("kind", "convert"), READINGS)
def test_values_and_errors_are_the_same(kind: str, convert: bool) -> None:
    for text in TEXTS:
        if convert and b"raw" in text:
            continue  # as above
        if kind in ("Pair", "two") and text in (
            b"[]",
            b'["a"]',
            b'["n",3,"more"]',
            b'["a","b","c"]',
            b'["n"]',
        ):
            continue  # a wrong number of elements is refused in other words
        ours, theirs = (
            outcome(library, kind, text, convert=convert) for library in (pure, msgspec)
        )
        assert ours == theirs, text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.text()
    | st.floats(-1e15, 1e15),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_documents_are_encoded_to_values_that_are_equal(value: Any) -> None:
    ours = pure.json.encode(value)
    assert msgspec.json.decode(ours) == value
    assert pure.json.decode(msgspec.json.encode(value)) == value
    assert pure.to_builtins(value) == value


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"a"}', b"1 2", b"NaN", b"01", b'"a\nb"', b"\xef\xbb\xbf1", b"[" * 9999]
)
def test_what_is_no_json_is_refused_alike(text: bytes) -> None:
    refused = [pytest.raises((library.DecodeError, RecursionError)) for library in BOTH]
    for library, expected in zip(BOTH, refused, strict=True):
        with expected:
            library.json.decode(text)


@pytest.mark.parametrize("library", BOTH, ids=["msgspec", "pure"])
def test_classes_keep_what_they_promise(library: ModuleType) -> None:
    kinds = BY_LIBRARY[library]
    thing, needs = kinds["Thing"](ip="::1"), kinds["Needs"](1)
    with pytest.raises(AttributeError, match="immutable type: 'Thing'"):
        thing.ip = "::2"
    assert library.structs.replace(thing, ip="::2").ip == "::2"
    with pytest.raises(TypeError, match="`Thing` has no field 'q'"):
        library.structs.replace(thing, q=1)
    library.structs.force_setattr(thing, "ip", "::3")
    assert thing == kinds["Thing"](ip="::3")
    assert hash(kinds["Row"]("a")) == hash(kinds["Row"]("a"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(needs)
    needs.items.append(2)
    assert kinds["Needs"](1).items == [], "a default is not shared"
    with pytest.raises(ValueError, match="first is negative"):
        library.structs.replace(needs, first=-1)
    with pytest.raises(TypeError):
        kinds["Needs"]()
    assert library.structs.astuple(kinds["Row"]("a")) == ("a", 7)
    assert [field.encode_name for field in library.structs.fields(kinds["Row"])] == [
        "first-name",
        "age",
    ]
    match kinds["Row"]("b", 3):
        case object(first_name="b", age=age):
            assert age == 3


PROJECT = """
import json, sys
from sliceplane.api.codec import decode, encode
from sliceplane.api.scheme import RESOURCES
for line in open("tests/fuzz/corpus/objects.jsonl", "rb"):
    document = json.loads(line)
    for resource in RESOURCES:
        if (resource.api_version, resource.kind) == (document["apiVersion"], document["kind"]):
            value = decode(line, resource.projection)
            print(resource.key, repr(value), encode(value).decode())
"""


def test_objects_of_the_api_are_read_alike() -> None:
    told = []
    for path in ("src", f"{ROOT}/tools/release/pure:src"):
        command = (sys.executable, "-c", PROJECT)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        )
        told.append(done.stdout.splitlines())
    assert len(told[0]) >= 20
    assert told[1] == told[0]


def test_the_rooms_that_the_agent_is_made_of_pass_with_it() -> None:
    rooms = [
        "tests/agent/test_checks.py",
        "tests/agent/test_registration.py",
        "tests/watch/informer",
        "tests/api",
    ]
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *rooms)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tools/release/pure"),
        "HYPOTHESIS_PROFILE": "quick",
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=500
    )
    assert done.returncode == 0, done.stdout[-3000:]
    program = "import msgspec; print(msgspec.__file__)"
    where = subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, env=environment, check=True
    )
    assert where.stdout.strip() == str(ROOT / "tools/release/pure/msgspec/__init__.py")
