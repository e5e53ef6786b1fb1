"""Checks before anything is built, so that a release that cannot succeed ends within a second.

Every problem is reported at once, each with its remedy.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from tools.environments import interpreters
from tools.release.agent_file import PYTHON
from tools.release.documents import changes
from tools.release.running import ROOT, VERSION, commit, run

#: free space that the images of two architectures and their builds take at most
IMAGES_BYTES: Final = 6 * 10**9
#: files of a report that are named
_NAMED: Final = 10
#: sentences of documents that a release makes false
_UNPUBLISHED: Final = re.compile(
    r"nothing is published|is published, `uvx|published images and packages", re.IGNORECASE
)
REHEARSE: Final = "make release RELEASE=--untagged"


def working_tree(status: str) -> list[str]:
    """The problem that ``git status --porcelain`` shows: files that are not committed."""
    lines = status.splitlines()
    if not lines:
        return []
    more = [f"... and {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
    listed = "".join(f"\n    {line}" for line in [*lines[:_NAMED], *more])
    return [
        (
            "a release is built from a commit, and these files differ from HEAD: git commit or git "
            f"stash -u{listed}"
        )
    ]


def tag(tags_at_head: Collection[str], tagged_commit: str, head: str) -> list[str]:
    """The problem of a HEAD that the version's tag does not name.  *tagged_commit* is empty if
    there is no such tag.
    """
    name = f"v{VERSION}"
    if name in tags_at_head:
        return []
    rehearse = f"to build HEAD as a rehearsal: {REHEARSE}"
    if tagged_commit:
        return [
            (
                f"HEAD ({head[:12]}) is not the tag {name} ({tagged_commit[:12]}): git checkout "
                f"{name}; {rehearse}"
            )
        ]
    return [f"there is no tag {name}: git tag -s {name}; {rehearse}"]


def changelog(text: str, *, dated: bool) -> list[str]:
    """The problems of the CHANGELOG: no entry of this version, and, *dated*, lines that no version
    owns.
    """
    problems = []
    try:
        changes(text, VERSION, dated=dated)
    except ValueError as error:
        problems.append(str(error))
    unreleased = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if dated and unreleased is not None and unreleased[1].strip():
        remedy = f"move what a user notices into the entry of {VERSION}, and delete the rest"
        problems.append(
            f"CHANGELOG.md has lines under Unreleased that {VERSION} contains: {remedy}"
        )
    return problems


def documents_of_a_clone(files: Mapping[str, str]) -> list[str]:
    """The problem of *files*, path to text, that say that there is no published version."""
    lines = [
        f"\n    {path}:{number}: {line.strip()}"
        for path, text in sorted(files.items())
        for number, line in enumerate(text.splitlines(), 1)
        if _UNPUBLISHED.search(line)
    ]
    return (
        [f"documents say that no version is published: say how to get {VERSION}{''.join(lines)}"]
        if lines
        else []
    )


def machine(parts: Collection[str]) -> list[str]:
    """Reports what this machine lacks for *parts*, and what cannot be installed by the build
    itself.
    """
    problems = []
    if "agent" in parts and PYTHON not in interpreters():
        remedy = (
            f"apt-get install python{PYTHON}, pyenv install {PYTHON} or uv python install {PYTHON}"
        )
        problems.append(
            f"the agent's file is built by Python {PYTHON}, which is not here: {remedy}"
        )
    if "images" not in parts:
        return problems
    others = 'make release PARTS="packages agent chart"'
    if os.geteuid() != 0:
        problems.append(
            f"images are root file systems, which only root can make: run as root, or {others}"
        )
    tools = ("mmdebstrap", "buildah", "qemu-aarch64-static", "arch-test")
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing and shutil.which("apt-get") is None:
        problems.append(
            f"images need {', '.join(missing)}, and apt-get is not here: use Debian or Ubuntu, or "
            f"{others}"
        )
    free = shutil.disk_usage(ROOT).free
    if free < IMAGES_BYTES:
        needed = (
            f"{IMAGES_BYTES / 1e9:.0f} GB of {ROOT / 'build'}, and {free / 1e9:.1f} GB are free"
        )
        problems.append(f"images need {needed}: rm -rf build/image*, or {others}")
    return problems


def check(parts: Collection[str], *, tagged: bool) -> None:
    """Ends the program if the release cannot succeed, with every reason."""
    problems = working_tree(run("git", "status", "--porcelain"))
    problems += changelog(Path(ROOT, "CHANGELOG.md").read_text(), dated=tagged)
    if tagged:
        texts = run("git", "ls-files", "README.md", "docs/*.md", "deploy/helm").split()
        problems += documents_of_a_clone({path: (ROOT / path).read_text() for path in texts})
        at_tag = run(
            "git", "for-each-ref", "--format=%(objectname) %(*objectname)", f"refs/tags/v{VERSION}"
        ).split()
        problems += tag(
            run("git", "tag", "--points-at", "HEAD").split(), at_tag[-1] if at_tag else "", commit()
        )
    problems += machine(parts)
    if problems:
        sys.exit("".join(f"release: {problem}\n" for problem in problems).rstrip())
