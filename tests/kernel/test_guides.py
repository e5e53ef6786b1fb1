"""README and guides: every command, pasted in the order of the document, ends well and prints what is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.guides import GUIDES, blocks, cut, shape, terminal


@pytest.mark.kernel
@pytest.mark.kubectl
@pytest.mark.timeout(300)
@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_commands_print_what_the_guide_shows(path: Path) -> None:
    ran = 0
    with terminal() as shell:
        for _, commands in blocks(path.read_text(encoding="utf-8")):
            for step in commands:
                said = shell.run(step.command, stays=step.stays)
                assert shape(cut(step.output, said)) == shape(step.output), f"$ {step.command}"
                ran += 1
    assert ran >= 5


@pytest.mark.kernel
def test_a_command_that_fails_is_told() -> None:
    with terminal() as shell:
        with pytest.raises(AssertionError, match="ended with 3:\nno such thing"):
            shell.run("echo no such thing >&2; (exit 3)")
        shell.run("export KEPT=yes")
        assert shell.run("echo $KEPT") == ["yes"], "the shell remembers"
