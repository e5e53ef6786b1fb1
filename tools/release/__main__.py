"""See the package's docstring; ``make release`` runs it."""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.release import (
    agent_file,
    chart,
    checking,
    documents,
    images,
    installing,
    packages,
    preflight,
)
from tools.release.running import DIST, VERSION, commit, sha256

#: the builder's identity in provenance; a forge's workflow passes its own
LOCAL: Final = "https://github.com/sliceplane/sliceplane/blob/main/CONTRIBUTING.md#a-release"
PARTS: Final = ("packages", "agent", "chart", "images")


@contextmanager
def step(title: str) -> Iterator[None]:
    """Prints the step's title at its start, and how long it took at its end."""
    print(f"release: {title}", flush=True)
    start = time.monotonic()
    yield
    print(f"      done in {time.monotonic() - start:.0f} s", flush=True)


def in_scratch(part: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="sliceplane-release-") as folder:
        part(Path(folder))


def build_agent() -> None:
    in_scratch(agent_file.build)
    vendored = [
        documents.python_component(name, version) for name, version in agent_file.vendored().items()
    ]
    name = agent_file.NAME
    (DIST / f"{name}.cdx.json").write_bytes(
        documents.sbom(name, "application", vendored, sha256(DIST / name))
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="release", description="Build, try and list a release in dist/."
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; default: all"
    )
    parser.add_argument(
        "--untagged",
        action="store_true",
        help="rehearse: build a commit that the tag does not name",
    )
    parser.add_argument(
        "--builder", default=LOCAL, metavar="URI", help="the builder's identity in the provenance"
    )
    flags = parser.parse_args()
    if unknown := set(flags.parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    parts = flags.parts or PARTS
    tagged = not flags.untagged
    preflight.check(parts, tagged=tagged)
    start = time.monotonic()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    builds: dict[str, Callable[[], None]] = {
        "packages": lambda: in_scratch(packages.build),
        "agent": build_agent,
        "chart": lambda: in_scratch(chart.build),
        "images": lambda: images.build(flags.builder, tagged=tagged),
    }
    tries = {"agent": agent_file.try_out, "packages": installing.try_out, "chart": chart.try_out}
    tries["images"] = images.try_out
    with step("tools, with pinned hashes"):
        packages.tools_python()
    for part in (part for part in builds if part in parts):
        with step(f"{part}, built once" if part == "images" else f"{part}, built twice"):
            builds[part]()
    documents.write(flags.builder, tagged=tagged)
    for part in (part for part in tries if part in parts):
        with step(f"{part}, installed and run"):
            in_scratch(tries[part])
    with step("SBOMs against their schema, checksums"):
        checking.check_folder()
    checking.print_listing()
    whole = "all parts" if set(parts) == set(PARTS) else f"only {', '.join(parts)}"
    origin = (
        f"the tag v{VERSION}"
        if tagged
        else f"{commit()[:12]}, a rehearsal that must not be published"
    )
    print(
        f"release: {VERSION} is in dist/ ({whole}), from {origin}; {time.monotonic() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
