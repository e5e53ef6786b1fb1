"""Documents about the files of a release: what is in them, how they were made, what changed, and
their digests.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tools.release.running import (
    DIST,
    ROOT,
    SOURCE_URL,
    VERSION,
    commit,
    commit_time,
    digests,
    sha256,
)

SBOM_TYPE: Final = "application/vnd.cyclonedx+json"
PROVENANCE_TYPE: Final = "application/vnd.in-toto+json"
SUMS: Final = "SHA256SUMS"
PROVENANCE: Final = "provenance.intoto.json"
CHANGES: Final = "CHANGES"
#: how a release is made: CONTRIBUTING.md, "A release"
BUILD_TYPE: Final = f"{SOURCE_URL}/blob/v{VERSION}/CONTRIBUTING.md#a-release"
PAGE_LINES: Final = 60

Component = dict[str, Any]


def _time() -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(commit_time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def python_component(name: str, version: str, licence: str = "") -> Component:
    """A distribution of a package index; *licence* is an SPDX expression (PEP 639)."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    purl = f"pkg:pypi/{name}@{quote(version)}"
    licences = {"licenses": [{"expression": licence}]} if licence else {}
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        **licences,
    }


def debian_components(status: str, distribution: str) -> list[Component]:
    """Of a ``/var/lib/dpkg/status``: every package that is installed."""
    components = []
    for paragraph in status.split("\n\n"):
        head = HeaderParser().parsestr(paragraph.strip())
        if not str(head.get("Status", "")).endswith(" installed"):
            continue
        name, version = str(head["Package"]), str(head["Version"])
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={head['Architecture']}&distro={distribution}"
        components.append(
            {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        )
    return components


def image_components(rootfs: Path) -> list[Component]:
    """Debian's packages and Python's distributions in a root file system."""
    release = dict(
        re.findall(r'^(\w+)="?([^"\n]*)', (rootfs / "etc/os-release").read_text(), re.MULTILINE)
    )
    distribution = f"{release['ID']}-{release['VERSION_ID']}"
    components = debian_components((rootfs / "var/lib/dpkg/status").read_text(), distribution)
    for path in sorted((rootfs / "opt/sliceplane").rglob("*.dist-info/METADATA")):
        head = HeaderParser().parsestr(path.read_text())
        licence = str(head.get("License-Expression") or "")
        components.append(python_component(str(head["Name"]), str(head["Version"]), licence))
    return components


def sbom(name: str, kind: str, components: Iterable[Component], digest: str = "") -> bytes:
    """CycloneDX 1.6 of a file or a container image."""
    subject: Component = {"type": kind, "bom-ref": name, "name": name, "version": VERSION}
    if digest:
        subject["hashes"] = [{"alg": "SHA-256", "content": digest}]
    listed = sorted(components, key=lambda component: str(component["bom-ref"]))
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{SOURCE_URL}/{commit()}/{name}')}",
        "version": 1,
        "metadata": {
            "timestamp": _time(),
            "component": subject,
            "licenses": [{"license": {"id": "Apache-2.0"}}],
        },
        "components": listed,
        "dependencies": [
            {"ref": name, "dependsOn": [component["bom-ref"] for component in listed]}
        ],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def provenance(files: Mapping[str, str], builder: str, *, tagged: bool) -> bytes:
    """An in-toto statement (v1) with SLSA provenance (v1) about files and their SHA-256. It is not
    signed: the forge's attestation is. The same commit and builder give the same bytes, so the time
    of the build is not in it.
    """
    locks = sorted(ROOT.glob("requirements*.lock"))
    reference = f"refs/tags/v{VERSION}" if tagged else commit()
    source = {"uri": f"git+{SOURCE_URL}@{reference}", "digest": {"gitCommit": commit()}}
    document = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"source": source["uri"], "command": "make release"},
                "internalParameters": {"SOURCE_DATE_EPOCH": commit_time()},
                "resolvedDependencies": [
                    source,
                    *({"name": path.name, "digest": {"sha256": sha256(path)}} for path in locks),
                ],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def changes(text: str, version: str, *, dated: bool) -> str:
    """Returns the entry of *version* in a CHANGELOG.

    Raises ``ValueError`` if there is no entry, if it is longer than a page, or if it must be
    *dated* and has no day.
    """
    found = re.search(
        rf"^## {re.escape(version)}(?: - ([^\n]*))?$.*?(?=^## |\Z)", text, re.DOTALL | re.MULTILINE
    )
    if found is None:
        raise ValueError(
            f"CHANGELOG.md has no entry of {version}: write one, ## {version} - YYYY-MM-DD"
        )
    if dated and not re.fullmatch(r"\d{4}-\d\d-\d\d", found[1] or ""):
        raise ValueError(
            f"the entry of {version} in CHANGELOG.md has no day of release: make it ## {version} "
            "- YYYY-MM-DD, "
            "commit, and tag that commit"
        )
    entry = found[0].strip() + "\n"
    if len(entry.splitlines()) > PAGE_LINES:
        lines = len(entry.splitlines())
        raise ValueError(
            f"the entry of {version} in CHANGELOG.md has {lines} lines, and a page has "
            f"{PAGE_LINES}: shorten it"
        )
    return entry


def with_whole_links(entry: str) -> str:
    """Returns *entry* with links that lead to the tag's files from a forge's release page, too."""
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({SOURCE_URL}/blob/v{VERSION}/", entry)


def write(builder: str, *, tagged: bool) -> None:
    """Writes CHANGES, and the provenance of every file that is there."""
    entry = changes((ROOT / "CHANGELOG.md").read_text(), VERSION, dated=tagged)
    (DIST / CHANGES).write_text(with_whole_links(entry))
    (DIST / PROVENANCE).unlink(missing_ok=True)
    (DIST / PROVENANCE).write_bytes(provenance(digests(DIST), builder, tagged=tagged))
