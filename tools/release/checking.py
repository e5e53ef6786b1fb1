"""The last look at ``dist/``: SBOMs against CycloneDX's own JSON schema, and checksums as a user
compares them.

``SHA256SUMS`` is written here, after every file was installed and run: a folder without it is no
release.
"""

from __future__ import annotations

import json
from typing import Any, Final

from benchmarks.tools.peers import wheel
from jsonschema import Draft7Validator, FormatChecker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7
from tools.release.documents import SUMS
from tools.release.running import DIST, digests, run

#: the wheel that has CycloneDX's schemas
SCHEMAS: Final = "cyclonedx-python-lib==11.12.0"


def sbom_errors(document: Any) -> list[str]:
    """Returns where *document* breaks the schema of CycloneDX 1.6, and how."""
    folder = wheel(SCHEMAS) / "cyclonedx" / "schema" / "_res"
    schemas = {
        path.name: json.loads(path.read_text())
        for path in sorted(folder.glob("*.SNAPSHOT.schema.json"))
    }
    # Schemas name each other by their files, beside the one address of "$id".
    registry: Registry[Any] = Registry().with_resources(
        (f"http://cyclonedx.org/schema/{name}", Resource.from_contents(schema, DRAFT7))
        for name, schema in schemas.items()
    )
    validator = Draft7Validator(
        schemas["bom-1.6.SNAPSHOT.schema.json"], registry=registry, format_checker=FormatChecker()
    )
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def check_folder() -> None:
    """Ends the program if an SBOM is not valid.  Writes the checksums, and reads them as
    ``sha256sum -c`` does.
    """
    for path in sorted(DIST.glob("*.cdx.json")):
        document = json.loads(path.read_text())
        if errors := sbom_errors(document):
            raise SystemExit(f"release: {path.name} is no CycloneDX 1.6:\n" + "\n".join(errors))
        print(f"      {path.name}: CycloneDX 1.6, {len(document['components'])} components")
    (DIST / SUMS).unlink(missing_ok=True)
    (DIST / SUMS).write_text(
        "".join(f"{digest}  {name}\n" for name, digest in digests(DIST).items())
    )
    checked = run("sha256sum", "--check", "--strict", SUMS, cwd=DIST)
    print("      sha256sum --check:", *checked.splitlines(), sep="\n        ")


def print_listing() -> None:
    """Prints digest, size in bytes and name of every file."""
    for name, digest in digests(DIST).items():
        print(f"{digest}  {(DIST / name).stat().st_size:>11,}  dist/{name}")
