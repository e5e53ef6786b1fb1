"""README and guides: every command, pasted in the order of the document, ends well and prints what
is shown.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tools.guides import TYPED, Step, cut, sessions, shape, terminal
from tools.make_recording import PICTURE, picture, record

NEEDED = {"deploy.md": ("etcd", "etcdctl", "haproxy", "curl", "jq")}


@pytest.mark.kernel
@pytest.mark.kubectl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", TYPED, ids=lambda path: path.name)
def test_commands_print_what_the_guide_shows(path: Path) -> None:
    missing = [name for name in NEEDED.get(path.name, ()) if shutil.which(name) is None]
    if missing and not os.environ.get("CI"):
        pytest.skip(f"needs {', '.join(missing)}")
    assert not missing
    ran = 0
    for _, commands in sessions(path.read_text(encoding="utf-8")):
        for step, said in commands:
            assert shape(cut(step.output, said)) == shape(step.output), f"$ {step.command}"
            ran += 1
    assert ran >= 5


@pytest.mark.kernel
@pytest.mark.kubectl
def test_the_picture_shows_what_is_so() -> None:
    """What the recording holds, as a reader sees it; and nothing of it comes from elsewhere."""
    svg = PICTURE.read_text(encoding="utf-8")
    assert not re.search(r"(href|src|url)\W|@import|<script", svg)
    shown = [
        "".join(text.itertext())
        for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]
    now = ElementTree.fromstring(picture(record())).iter("{http://www.w3.org/2000/svg}text")
    assert shape(shown) == shape(["".join(text.itertext()) for text in now])
    assert len(shown) > 20


@pytest.mark.kernel
def test_a_command_that_fails_is_told() -> None:
    with terminal() as shell:
        with pytest.raises(AssertionError, match="ended with 3:\nno such thing"):
            shell.run(Step("echo no such thing >&2; (exit 3)", ()))
        shell.run(Step("export KEPT=yes", ()))
        assert shell.run(Step("echo $KEPT", ())) == ["yes"], "the shell remembers"


@pytest.mark.kernel
def test_a_watch_that_kubectl_cancels_itself_is_no_output() -> None:
    line = (
        'I1128 18:50:01.123456   42 reflector.go:570] "Warning: watch ended with error" '
        'reflector="watcher.go:1" '
        'err="unable to decode an event from the watch stream: context {}"'
    )
    with terminal() as shell:
        command = (
            f"cat <<'END'\n{line.format('canceled')}\ncondition met\n{line.format('lost')}\nEND"
        )
        assert shell.run(Step(command, ())) == ["condition met", line.format("lost")]
