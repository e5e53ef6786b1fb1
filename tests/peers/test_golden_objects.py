"""The objects that k8s.io/api keeps of itself and of the three releases before: one of each kind
with every field set, as protobuf and as JSON. Ours reads the one to the other, and writes the bytes
that Kubernetes writes.

An object with fields that are gone since has a second pair of files, what is left of it after a
round trip.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.documents.test_protobuf import without_nulls
from tests.peers.kubernetes import MODULE
from tests.peers.programs import run_go

from sliceplane.api.scheme import LISTED, RESOURCES, by_kind
from sliceplane.server.documents.protobuf import decode, encode, supports

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

NEWEST = "HEAD"


@pytest.fixture(scope="module")
def releases() -> list[Path]:
    """A folder of objects for each release."""
    run_go("mod", "download", "k8s.io/api", folder=MODULE)
    folder = (
        Path(run_go("list", "-m", "-f", "{{.Dir}}", "k8s.io/api", folder=MODULE).strip())
        / "testdata"
    )
    return sorted(path for path in folder.iterdir() if path.is_dir())


def kept(path: Path, suffix: str) -> Path:
    after = path.with_suffix(f".after_roundtrip{suffix}")
    return after if after.exists() else path.with_suffix(suffix)


def documents(release: Path) -> dict[Path, Any]:
    """The objects of kinds that have a protobuf form here, and objects."""
    paths = [path for path in sorted(release.glob("*.pb")) if "after_roundtrip" not in path.name]
    loaded = {
        path: json.loads(kept(path, ".json").read_text())
        for path in paths
        if path.with_suffix(".json").exists()
    }
    return {
        path: document
        for path, document in loaded.items()
        if "kind" in document
        and supports(document["apiVersion"], document["kind"])
        and by_kind(document["apiVersion"], document["kind"]) not in LISTED
    }


def test_every_golden_object_is_read_and_written_as_upstream_does(releases: list[Path]) -> None:
    wrong = []
    count = 0
    for release in releases:
        for path, document in documents(release).items():
            count += 1
            decoded = decode(path.read_bytes())
            if (
                without_nulls(decoded) != without_nulls(document)
                or encode(decoded) != kept(path, ".pb").read_bytes()
            ):
                wrong.append(f"{release.name}/{path.name}")
    assert wrong == []
    assert count > 240, f"{count} objects of {len(releases)} releases"


def test_every_kind_is_among_them(releases: list[Path]) -> None:
    (newest,) = (release for release in releases if release.name == NEWEST)
    seen = {(document["apiVersion"], document["kind"]) for document in documents(newest).values()}
    stored = {(resource.api_version, resource.kind) for resource in RESOURCES}
    assert stored - seen == set()
