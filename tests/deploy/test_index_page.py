"""What the package index shows of README.md: every link and picture leads somewhere from
there too.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS = re.compile(
    rf"https://(?:github|raw\.githubusercontent)\.com/sliceplane/sliceplane/(?:blob/)?v{re.escape(PROJECT['project']['version'])}/"
)
_TARGETS = re.compile(r"\]\(([^)\s]+)|\b(?:src|href)=\"([^\"]+)")


def targets(text: str) -> list[str]:
    return [
        first or second
        for first, second in _TARGETS.findall(
            re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        )
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wheel")
    command = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q")
    flags = (
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    )
    subprocess.run(
        (*command, *flags), check=True, timeout=150, cwd=folder, env={"PATH": "/usr/bin:/bin"}
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (each for each in opened.namelist() if each.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(opened.read(name))
    assert metadata["Description-Content-Type"] == "text/markdown"
    return (
        str(metadata.get_payload(decode=True), "utf-8")
        if metadata.get_payload()
        else str(metadata["Description"])
    )


def test_no_link_of_the_page_is_relative(page: str) -> None:
    here = targets((ROOT / "README.md").read_text())
    there = targets(page)
    assert len(here) == len(there) > 10
    for relative, whole in zip(here, there, strict=True):
        if re.match(r"[a-z]+:|#", relative):
            assert whole == relative
            continue
        path = OURS.sub("", whole)
        assert path == relative, whole
        assert (ROOT / path.partition("#")[0]).exists(), whole


def test_pictures_are_shown_and_pages_are_led_to() -> None:
    """Whatever way README.md writes them.  GitHub has a picture's page at ``blob``, and the picture
    at ``raw``.
    """
    raw = "https://raw.githubusercontent.com/sliceplane/sliceplane/v$HFPR_VERSION/"
    page = "https://github.com/sliceplane/sliceplane/blob/v$HFPR_VERSION/"
    text = (
        '[![a terminal]({raw}docs/a.svg)]({page}docs/b.md "b") ![c]({raw}docs/c.png) '
        "[d](https://e.test/d) [e](#there)"
        ' <img alt="f" src="{raw}docs/f.svg"> <a class="g" href="{page}docs/g.md#h">g</a> <img '
        'src="https://e.test/i">'
    )
    made = text.format(raw="", page="")
    for each in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        made = re.sub(each["pattern"], each["replacement"], made)
    assert made == text.format(raw=raw, page=page)
