"""See the package's docstring; ``make release`` runs it."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.release import agent_file, chart, documents, images, installing, packages
from tools.release.running import DIST, VERSION, digests, run, sha256

#: the builder's identity in provenance; a forge's workflow passes its own
LOCAL: Final = "https://github.com/sliceplane/sliceplane/blob/main/CONTRIBUTING.md#a-release"
PARTS: Final = ("packages", "agent", "chart", "images")


def check_sources(tagged: bool) -> None:
    """Ends the program if what would be built is not what is committed, or is not the version's tag."""
    changed = run("git", "status", "--porcelain")
    if changed:
        raise SystemExit(f"release: only what is committed is built; this is not:\n{changed}")
    tags = run("git", "tag", "--points-at", "HEAD").split()
    if tagged and f"v{VERSION}" not in tags:
        raise SystemExit(
            f"release: HEAD is not the tag v{VERSION}: git tag -s v{VERSION}, or pass --untagged to rehearse"
        )


def in_scratch(part: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="sliceplane-release-") as folder:
        part(Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(prog="release", description="Build, try and list a release in dist/.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without one")
    parser.add_argument("--untagged", action="store_true", help="build a commit that is not the version's tag")
    parser.add_argument("--builder", default=LOCAL, metavar="URI", help="who builds, for the provenance")
    flags = parser.parse_args()
    if unknown := set(flags.parts) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    parts = flags.parts or PARTS
    check_sources(not flags.untagged)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    packages.tools_python()
    if "packages" in parts:
        in_scratch(packages.build)
    if "agent" in parts:
        in_scratch(agent_file.build)
        described = [documents.python_component(name, version) for name, version in agent_file.vendored().items()]
        name = agent_file.NAME
        (DIST / f"{name}.cdx.json").write_bytes(documents.sbom(name, "application", described, sha256(DIST / name)))
    if "chart" in parts:
        in_scratch(chart.build)
    if "images" in parts:
        images.build(flags.builder)
    documents.write_all(flags.builder, dated=not flags.untagged)
    for part, try_out in (("agent", agent_file.try_out), ("packages", installing.try_out), ("chart", chart.try_out)):
        if part in parts:
            in_scratch(try_out)
    if "images" in parts:
        images.try_out()
    for name, digest in digests(DIST).items():
        print(f"{digest}  dist/{name}  ({(DIST / name).stat().st_size / 1e6:.2f} MB)")


if __name__ == "__main__":
    main()
