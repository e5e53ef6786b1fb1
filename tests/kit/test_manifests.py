"""YAML and JSON of files: what aliases, depth and width may cost, and where a mistake is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sliceplane.kit.io import manifests
from sliceplane.kit.io.manifests import BadDocument, config_document, manifest_documents
from sliceplane.kit.yaml_documents import YamlError, parse_yaml, parse_yaml_stream


def alias_bomb(levels: int) -> bytes:
    rows = [
        'a0: &a0 ["lol"]',
        *(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)),
    ]
    return "\n".join(rows).encode()


def test_documents_of_a_manifest() -> None:
    assert manifest_documents(b"a: 1\n---\n# nothing\n---\nb: [x]\n---\n") == [
        {"a": 1},
        {"b": ["x"]},
    ]
    assert manifest_documents(b'{"a": [1, null]}') == [{"a": [1, None]}]
    assert manifest_documents(b"") == []
    # Several JSON documents, and JSON with comments, are YAML.
    assert manifest_documents(b'{"a": 1}\n---\n{"b": 2}\n') == [{"a": 1}, {"b": 2}]
    assert manifest_documents(b"{a: 1} # no JSON\n") == [{"a": 1}]


def test_anchors_end_with_their_document() -> None:
    with pytest.raises(BadDocument, match="unknown anchor 'a' referenced"):
        manifest_documents(b"x: &a 1\n---\ny: *a\n")


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (alias_bomb(9), "line 6: document contains excessive aliasing"),
        (
            alias_bomb(5) + b"\n---\n" + alias_bomb(9),
            "line 12: document contains excessive aliasing",
        ),
        (b"---\na: 1\n---\n" + b"- " * 1000, "line 4: exceeded max depth"),
        (b"[" * 100_000, "line 1: exceeded max depth"),
        (b'{"a":' * 100_000, "line 1: exceeded max depth"),
        (b"a: 1\nb: [", "line 3: did not find expected node content"),
        (b"a: \x00", "control characters are not allowed"),
        (b"a: 1\n---\na: 2\na: 3\n", 'line 4: key "a" already set in map'),
        (b"a: .nan", "unsupported value: .nan"),
        (b"\xff", "invalid UTF-8"),
        (b"%TAG !a! b\n" * 200 + b"---\n", "too many directives"),
        (b"a\n" + b"...\n%TAG !a! b\n---\n" * 101, "too many directives"),
    ],
)
def test_what_is_refused(raw: bytes, sentence: str) -> None:
    with pytest.raises(BadDocument) as caught:
        manifest_documents(raw)
    assert sentence in str(caught.value)


def test_the_bounds_of_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(YamlError, match="more than 3 documents"):
        parse_yaml_stream(b"---\na\n" * 4, depth_max=9, documents_max=3)
    # All documents share the bound of events, which one alone would keep.
    assert len(parse_yaml_stream(b"---\n[a, b]\n" * 3, depth_max=9, events_max=100)) == 3
    with pytest.raises(YamlError, match="too many values"):
        parse_yaml_stream(b"---\n[a, b]\n" * 30, depth_max=9, events_max=100)
    monkeypatch.setattr(manifests, "JSON_VALUES_MAX", 10)
    with pytest.raises(BadDocument, match="more than 10 values"):
        manifest_documents(b"[" + b"1," * 10 + b"1]")


def test_the_first_document_is_read_as_before() -> None:
    """A request's body: what follows its first document is not looked at."""
    assert parse_yaml(b"a: 1\n---\n[[[", depth_max=9).value == {"a": 1}
    assert parse_yaml(b"", depth_max=9).value is None


def test_json_beyond_the_bound_of_yaml_says_where_it_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(manifests, "CONFIG_BYTES_MAX", 10)
    with pytest.raises(BadDocument, match="line 3: JSON is malformed"):
        manifest_documents(b'{"a": 1,\n"b": 2,\n"c": }\n')


def test_a_configuration_has_one_document(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("a: 1\n")
    assert config_document(path) == {"a": 1}
    path.write_text("a: 1\n---\nb: 2\n")
    with pytest.raises(BadDocument, match="more than one document"):
        config_document(path)
    path.write_text("")
    assert config_document(path) is None
    path.write_bytes(b"a: b\n\xe9")
    with pytest.raises(OSError, match="line 2, column 1 is not UTF-8"):
        config_document(path)
