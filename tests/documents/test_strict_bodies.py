"""Request bodies: what decodes, what is said of it, and that nothing a client sends is more than a
400.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sliceplane.api.errors import StatusError
from sliceplane.api.scheme import ConfigMaps, EndpointSlices, Events, Resource
from sliceplane.kit.yaml_documents import ALIASED_NODES_MAX, EVENTS_MAX, REPEATED_MAX
from sliceplane.server.documents import strict
from sliceplane.server.documents.schema.json_errors import describe_syntax_error
from sliceplane.server.documents.schema.walks import DEPTH_MAX
from sliceplane.server.documents.strict import (
    MalformedBody,
    decode_json,
    decode_value,
    decode_yaml,
    read_body,
    strict_error,
)

TYPE_META = r'struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }'
PREFIX = "the object provided is unrecognized (must be of type ConfigMap): "


def refusal(
    raw: bytes, body_format: strict.Format = "json", resource: Resource = ConfigMaps
) -> str:
    with pytest.raises(StatusError) as caught:
        read_body(resource, raw, body_format=body_format)
    assert (caught.value.code, caught.value.reason) == (400, "BadRequest")
    return caught.value.message


def test_repeated_and_unknown_members_in_the_order_of_the_text() -> None:
    raw = (
        b'{"metadata":{"foo":1,"labels":{"a.b/c":"x","a.b/c":"y"}},'
        b'"endpoints":[{"addresses":["a"],"addresses":["b"],"x":{"y":1,"y":2}}],"spec":1,"spec":2}'
    )
    decoded = read_body(EndpointSlices, raw, validation="Strict")
    assert decoded.problems == (
        'unknown field "metadata.foo"',
        'duplicate field "metadata.labels.a.b/c"',
        'duplicate field "endpoints[0].addresses"',
        'unknown field "endpoints[0].x"',
        'unknown field "spec"',
    )
    assert decoded.document["endpoints"][0]["addresses"] == ["b"]
    assert read_body(EndpointSlices, raw, validation="Ignore").problems == ()
    assert decode_json(raw).problems == (
        'duplicate field "metadata.labels.a.b/c"',
        'duplicate field "endpoints[0].addresses"',
        'duplicate field "endpoints[0].x.y"',
        'duplicate field "spec"',
    )


def test_the_strict_error() -> None:
    error = strict_error(
        "EndpointSlice",
        ('unknown field "metadata.foo"', 'duplicate field "endpoints[0].addresses"'),
    )
    assert (error.code, error.reason) == (400, "BadRequest")
    assert error.message == (
        'EndpointSlice in version "v1" cannot be handled as a EndpointSlice: strict decoding '
        "error: "
        'unknown field "metadata.foo", duplicate field "endpoints[0].addresses"'
    )


@pytest.mark.parametrize(
    "raw", [rb'{"data":{"a\u003ab":"1","a:b":"2"}}', rb'{"data":{"a\u003Ab":"1","a:b":"2"}}']
)
def test_a_colon_written_as_an_escape_hides_no_repetition(raw: bytes) -> None:
    assert read_body(ConfigMaps, raw).problems == ('duplicate field "data.a:b"',)


def test_colons_in_strings_are_no_repetition() -> None:
    assert read_body(ConfigMaps, rb'{"data":{"a":"::\u003a\":"}}').problems == ()


def test_nulls_are_dropped_after_they_were_looked_at() -> None:
    decoded = read_body(
        ConfigMaps, b'{"data":null,"nope":null,"metadata":{"name":"a","labels":null}}'
    )
    assert decoded.document == {"metadata": {"name": "a"}}
    assert decoded.problems == ('unknown field "nope"',)


def test_null_is_the_empty_object() -> None:
    assert read_body(ConfigMaps, b"null").document == {}


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (b"", "unexpected end of JSON input (<empty>)"),
        (b"{", "unexpected end of JSON input ({)"),
        (b'{"a" 1}', """invalid character '1' after object key ({"a" 1})"""),
        (b'{"a":}', """invalid character '}' looking for beginning of value ({"a":})"""),
        (b"{a:1}", "invalid character 'a' looking for beginning of object key string ({a:1})"),
        (b'{"a":1]', """invalid character ']' after object key:value pair ({"a":1])"""),
        (b'{"a":NaN}', """invalid character 'N' looking for beginning of value ({"a":NaN})"""),
        (b'{"a":-Infinity}', """invalid character 'I' in numeric literal ({"a":-Infinity})"""),
        (b'{"a":tru}', """invalid character '}' in literal true (expecting 'e') ({"a":tru})"""),
        (b'{"a":1}{', """invalid character '{' after top-level value ({"a":1}{)"""),
        (b'{"a":01}', """invalid character '1' after object key:value pair ({"a":01})"""),
        (
            b'{"a":1.}',
            """invalid character '}' after decimal point in numeric literal ({"a":1.})""",
        ),
        (b'{"a":1e}', """invalid character '}' in exponent of numeric literal ({"a":1e})"""),
        (b'{"a":"\n"}', """invalid character '\\n' in string literal ({"a":"\n"})"""),
        (b'{"a":"\\x"}', """invalid character 'x' in string escape code ({"a":"\\x"})"""),
        (
            b'{"a":"\\u00g"}',
            """invalid character 'g' in \\u hexadecimal character escape ({"a":"\\u00g"})""",
        ),
        (b'{"a":"\xff"}', 'invalid UTF-8 ({"a":"\ufffd"})'),
        (b'{"a":"\\ud800"}', 'invalid surrogate pair in string ({"a":"\\ud800"})'),
        (b'{"a":1e999}', 'number out of range ({"a":1e999})'),
        (b'{"a":' + b"9" * 5000 + b"}", 'number out of range ({"a":9999999999999999999999999 ...)'),
        (b"[" * 100_000, "exceeded max depth (" + "5b" * 30 + " ...)"),
        (
            b'{"a":' * 300 + b"1" + b"}" * 300,
            'exceeded max depth ({"a":{"a":{"a":{"a":{"a":{"a": ...)',
        ),
        (
            b"[1]",
            f"json: cannot unmarshal array into Go value of type {TYPE_META} (5b315d)",
        ),
        (
            b'{"kind":5}',
            'json: cannot unmarshal number into Go struct field .kind of type string ({"kind":5})',
        ),
    ],
)
def test_bodies_that_do_not_parse(raw: bytes, detail: str) -> None:
    assert refusal(raw) == f"{PREFIX}couldn't get version/kind; json parse error: {detail}"


def test_kinds_and_versions() -> None:
    assert read_body(ConfigMaps, b'{"kind":"ConfigMap"}').document == {"kind": "ConfigMap"}
    assert refusal(b'{"kind":"Pod","apiVersion":"v1"}') == (
        'Pod in version "v1" cannot be handled as a ConfigMap: converting (v1.Pod) to '
        "(core.ConfigMap): "
        "unknown conversion"
    )
    assert refusal(b'{"apiVersion":"v2"}').startswith(
        'ConfigMap in version "v2" cannot be handled as a ConfigMap: no kind "ConfigMap" is '
        'registered for version "v2"'
    )
    assert refusal(b'{"apiVersion":"events.k8s.io/v1","kind":"Event"}', resource=Events) == (
        "the API version in the data (events.k8s.io/v1) does not match the expected API version "
        "(v1)"
    )


def test_a_wrong_type_is_told_of_json_and_yaml() -> None:
    expected = (
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: '
        "json: cannot unmarshal number into Go struct field ConfigMap.data of type string"
    )
    assert refusal(b'{"data":{"a":5}}') == expected
    assert refusal(b"data:\n  a: 5\n", "yaml") == expected


# YAML


def test_yaml_like_the_same_json() -> None:
    document = {
        "metadata": {"name": "a"},
        "data": {"a": "x: y", "b": "1", "c": "2026-11-21", "d": "22:22"},
    }
    raw = yaml.safe_dump(document).encode()
    assert read_body(ConfigMaps, raw, body_format="yaml").document == document
    assert (
        read_body(ConfigMaps, json.dumps(document).encode(), body_format="yaml").document
        == document
    )


def test_yaml_scalars_as_go_reads_them() -> None:
    raw = b"""
a: [yes, On, n, FALSE, "yes"]
b: [1, -0x1F, 017, 0o17, 0b11, 1_000, "1"]
c: [1.5, .5, 1e3, -2.]
d: [~, null, , ""]
e: [22:22, 2026-11-21T10:00:00Z, 1.2.3, 0x, +, "-"]
f: [!!str 5, !!int "7", !!float 2, !foo bar]
1: one
true: two
"""
    assert decode_yaml(raw.replace(b"null, ,", b"null,")).document == {
        "a": [True, True, False, False, "yes"],
        "b": [1, -31, 15, 15, 3, 1000, "1"],
        "c": [1.5, 0.5, 1000.0, -2.0],
        "d": [None, None, ""],
        "e": ["22:22", "2026-11-21T10:00:00Z", "1.2.3", "0x", "+", "-"],
        "f": ["5", 7, 2.0, "bar"],
        "1": "one",
        "true": "two",
    }


def test_only_the_first_document_is_read() -> None:
    assert decode_yaml(b"a: 1\n---\nb: [\n").document == {"a": 1}
    assert decode_yaml(b"").document == {}


def test_repeated_keys_of_yaml_are_one_problem_with_lines() -> None:
    raw = b"kind: EndpointSlice\naddressType: IPv4\nfoo: 1\nendpoints: []\naddressType: IPv6\nfoo: 2\n"
    decoded = read_body(EndpointSlices, raw, body_format="yaml")
    lines = 'line 5: key "addressType" already set in map\n  line 6: key "foo" already set in map'
    assert decoded.problems == (f"yaml: unmarshal errors:\n  {lines}", 'unknown field "foo"')
    assert decoded.document["addressType"] == "IPv6"


def test_no_more_than_the_limit_of_repeated_keys_is_reported() -> None:
    [problem] = decode_yaml(b"a: 1\n" * 500).problems
    assert problem.count("\n") == REPEATED_MAX


def test_aliases_and_merge_keys() -> None:
    raw = (
        b"base: &b {x: 1, w: 2}\nplain: *b\nmerged:\n  <<: *b\n  w: 3\nboth:\n  <<: [{z: 1}, *b]\n"
    )
    decoded = decode_yaml(raw)
    assert decoded.problems == ()
    assert decoded.document["plain"] == {"x": 1, "w": 2}
    assert decoded.document["merged"] == {"x": 1, "w": 3}
    assert decoded.document["both"] == {"z": 1, "x": 1, "w": 2}
    assert decoded.document["plain"] is not decoded.document["base"]


def bomb(width: int, levels: int) -> bytes:
    """Lists of aliases of lists of aliases."""
    inner = ["x", *(f"*a{level}" for level in range(levels - 1))]
    return "\n".join(
        f"a{n}: &a{n} [{','.join([item] * width)}]" for n, item in enumerate(inner)
    ).encode()


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (b"a: [", "yaml: line 2: did not find expected node content"),
        (b"a: b: c", "yaml: line 1: mapping values are not allowed in this context"),
        (b"a: *x", "yaml: unknown anchor 'x' referenced"),
        (b"a: &x [*x]", "yaml: anchor 'x' value contains itself"),
        (b"a: .inf", "json: unsupported value: .inf"),
        (b"a: 1e999", "json: unsupported value: +Inf"),
        (b"[1]: 2", "yaml: line 1: invalid map key"),
        (b"a: !!int x", "yaml: line 1: cannot decode !!str `x` as a !!int"),
        (b"a: \xff", "yaml: invalid UTF-8"),
        (b"\x00", "yaml: control characters are not allowed"),
        (bomb(10, 12), "yaml: document contains excessive aliasing"),
        (bomb(1, DEPTH_MAX + 10), "yaml: line 200: exceeded max depth"),
        (b"[" * 3_000_000, "yaml: line 1: exceeded max depth"),
        (b"- " * 1_000_000, "yaml: line 1: exceeded max depth"),
        (b"- a\n" * (EVENTS_MAX + 1), "yaml: document contains too many values"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_yaml_that_is_refused(raw: bytes, detail: str) -> None:
    shown = raw[:30].hex() + (" ..." if len(raw) > 30 else "")
    assert refusal(raw, "yaml") == f"{PREFIX}{detail} ({shown})"


def test_what_aliases_may_bring_in() -> None:
    assert len(decode_yaml(bomb(10, 4)).document["a3"]) == 10
    assert ALIASED_NODES_MAX >= 10_000


# For all


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(st.characters(codec="utf-8"), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(":ab\\", max_size=2), inner, max_size=3)
    ),
    max_leaves=12,
)


def spell(value: Any, repeat: bool) -> str:
    """JSON with space in it, and, if asked for, the first member of every object twice."""
    if isinstance(value, dict):
        members = [
            f"{json.dumps(name)} : {spell(member, repeat)}" for name, member in value.items()
        ]
        return "{ " + " , ".join(members[:1] * repeat + members) + " }"
    if isinstance(value, list):
        return "[ " + " , ".join(spell(item, repeat) for item in value) + " ]"
    return json.dumps(value)


def has_members(value: Any) -> bool:
    return (
        bool(value)
        if isinstance(value, dict)
        else isinstance(value, list) and any(map(has_members, value))
    )


@given(st.dictionaries(st.text(":ab", max_size=2), JSON, max_size=3))
def test_repetitions_are_found_exactly_where_there_are_any(document: dict[str, Any]) -> None:
    once = decode_json(spell(document, False).encode())
    twice = decode_json(spell(document, True).encode())
    assert once.document == twice.document == document
    assert once.problems == ()
    assert bool(twice.problems) == has_members(document)


@given(st.binary(max_size=30) | st.text('{}[]",:0e-+.tfn\\u ', max_size=30).map(str.encode))
def test_our_scanner_and_the_parser_agree(raw: bytes) -> None:
    try:
        json.loads(raw.decode("latin-1"), parse_constant=int)  # int("NaN") is a ValueError too
    except ValueError:
        good = False
    else:
        good = True
    assert (describe_syntax_error(raw) == "") == good


@given(
    st.binary(max_size=60) | st.text("{}[]\"',:&*!|>-? #%@`ab1.\n\t<~", max_size=60).map(str.encode)
)
def test_nothing_but_a_400_comes_of_any_body(raw: bytes) -> None:
    for read in (decode_json, decode_yaml, decode_value):
        try:
            decoded = read(raw)
        except MalformedBody:
            continue
        msgspec.json.encode(decoded.document if isinstance(decoded, strict.Decoded) else decoded)
    for body_format in ("json", "yaml"):
        try:
            read_body(ConfigMaps, raw, body_format=body_format)
        except StatusError as error:
            assert error.code == 400  # noqa: PT017  # either outcome is fine
