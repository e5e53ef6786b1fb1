"""The help as a person sees it: 80 columns, no word torn apart, what matters first."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from sliceplane.cli.main import COMMANDS, main
from sliceplane.cli.options import FIRST, GROUPS, heading

#: options of ``up`` that a person needs at first; more under the first heading is a wall again
FIRST_MAX = 12


def command_lines() -> Iterator[tuple[str, ...]]:
    for name in COMMANDS:
        yield (name,)
        made = main.get_command(click.Context(main), name)
        if isinstance(made, click.Group):
            yield from ((name, below) for below in made.commands)


def found(words: tuple[str, ...]) -> click.Command:
    command: click.Command | None = main
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None, words
    return command


def help_of(words: tuple[str, ...]) -> str:
    done = CliRunner().invoke(main, [*words, "--help"], terminal_width=80)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("words", [(), *command_lines()], ids=" ".join)
def test_no_line_is_wider_than_the_terminal(words: tuple[str, ...]) -> None:
    assert [line for line in help_of(words).splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("words", [*command_lines()], ids=" ".join)
def test_every_option_is_told_once_and_in_one_piece(words: tuple[str, ...]) -> None:
    command = found(words)
    lines = help_of(words).partition("\nOptions:\n")[2].splitlines()
    for option in command.params:
        if isinstance(option, click.Option):
            shown = [
                line
                for line in lines
                if re.match(rf"  (-[\w-]+, )*{option.opts[0]}(?![\w-])", line)
            ]
            assert len(shown) == 1, (option.opts, shown)


def test_a_url_in_a_help_text_can_be_copied() -> None:
    assert "https://kubernetes.default.svc.cluster.local" in help_of(("up",))


def test_what_matters_comes_first() -> None:
    text = help_of(("up",))
    first = text.partition("\nOptions:\n")[2].partition("\n\n")[0]
    options = re.findall(r"^  (?:-\w, )?--([\w-]+)", first, re.MULTILINE)
    assert {"secure-port", "data-dir", "emulate", "proxy"} <= set(options)
    assert len(options) <= FIRST_MAX
    assert "etcd-cafile" not in options


def test_each_pattern_of_a_group_stands_for_an_option() -> None:
    names: set[str] = set()
    for words in command_lines():
        names |= {parameter.name or "" for parameter in found(words).params}
    used = {heading(name) for name in names}
    assert used - {FIRST} == {title for title, _ in GROUPS}


def test_a_command_that_is_misspelt() -> None:
    done = CliRunner().invoke(main, ["trce"])
    assert done.exit_code == 64
    assert "No such command 'trce'. Did you mean 'trace'?" in done.output


def test_an_option_in_the_environment() -> None:
    done = CliRunner().invoke(main, ["up"], env={"SLICEPLANE_UP_SECURE_PORT": "not-a-port"})
    assert done.exit_code == 64
    assert "'--secure-port'" in done.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell], prog_name="sliceplane")
    assert done.exit_code == 0
    assert "_SLICEPLANE_COMPLETE" in done.output


@pytest.mark.parametrize(
    "words", [("version",), ("estimate", "--pods", "3", "--nodes", "2")], ids=" ".join
)
def test_the_two_documents_for_programs_say_the_same(words: tuple[str, ...]) -> None:
    in_json = CliRunner().invoke(main, [*words, "-o", "json"])
    in_yaml = CliRunner().invoke(main, [*words, "-o", "yaml"])
    assert json.loads(in_json.output) == yaml.safe_load(in_yaml.output)
    assert json.loads(in_json.output)


@pytest.mark.parametrize("words", [*command_lines()], ids=" ".join)
def test_every_command_has_examples_that_can_be_parsed(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a command line of ours whose options exist; what it needs is not there, so it is not
    run.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("incident.recording", "monday.snapshot", "audit.log", "tls.crt", "tls.key"):
        (tmp_path / name).touch()
    examples: tuple[tuple[str, str], ...] = getattr(found(words), "examples", ())
    assert examples, f"the help of sliceplane {' '.join(words)} has no example"
    for _, line in examples:
        ours = (
            line.rpartition("| ")[2]
            .partition(" > ")[0]
            .removeprefix("source <(")
            .removeprefix("sudo ")
        )
        program, *given = shlex.split(ours.rstrip(")"))
        if program != "sliceplane":
            continue
        named = 1
        while named < len(given) and isinstance(above := found(tuple(given[:named])), click.Group):
            if given[named] not in above.commands:
                break
            named += 1
        found(tuple(given[:named])).make_context(given[named - 1], given[named:])


@pytest.mark.parametrize(
    ("typed", "meant"), [("--nodes", "--emulate-nodes"), ("--port", "--secure-port")]
)
def test_an_option_that_does_not_exist_suggests_the_one_that_ends_so(
    typed: str, meant: str
) -> None:
    done = CliRunner().invoke(main, ["up", typed, "3"])
    assert (done.exit_code, meant in done.output) == (64, True), done.output


def test_help_is_a_command() -> None:
    assert CliRunner().invoke(main, ["help", "agent", "run"]).output == help_of(("agent", "run"))
    unknown = CliRunner().invoke(main, ["help", "lnt"])
    assert (unknown.exit_code, "Did you mean 'lint'?" in unknown.output) == (64, True)
