"""What a command says where it cannot do what it was asked: one line on stderr and the right exit
code.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import sliceplane
from sliceplane.cli.answers import show
from sliceplane.cli.main import COMMANDS, main

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: nowhere
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
clusters: [{name: nowhere, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {}}]
"""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    path.write_text(KUBECONFIG)
    return str(path)


def test_the_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(main, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"sliceplane, version {sliceplane.__version__}\n")


def test_help_has_every_command_on_a_line_of_its_own() -> None:
    lines = CliRunner().invoke(main, ["--help"], terminal_width=80).output.splitlines()
    summaries = {summary for _, summary in COMMANDS.values()}
    shown = [
        line.split(maxsplit=1)
        for line in lines
        if line.strip().split(maxsplit=1)[-1:] and line.split(maxsplit=1)[-1] in summaries
    ]
    assert shown == [[name, summary] for name, (_, summary) in COMMANDS.items()]


@pytest.mark.parametrize(
    "flag", ["--anonymous-auth", "--leader-elect", "--traffic-distribution-conditions"]
)
def test_switches_say_what_they_take(flag: str) -> None:
    done = CliRunner().invoke(main, ["up", f"{flag}=maybe"])
    assert done.exit_code == 64
    assert f"Invalid value for '{flag}': 'maybe' is neither true nor false" in done.output


def test_etcd_needs_a_folder_for_what_servers_share() -> None:
    """The authority of a server that keeps nothing would be gone with it, and nobody could join the
    plane again.
    """
    done = CliRunner().invoke(main, ["up", "--etcd", "http://127.0.0.1:1", "--data-dir", "memory:"])
    assert done.exit_code == 64
    assert "--etcd needs a data directory" in " ".join(done.output.split())


ASKING = {
    "trace": (["trace", "--from", "10.0.0.1", "--to", "web"], 2),
    "audit": (["endpoints", "audit", "--second-look", "0"], 2),
    "save": (["snapshot", "save", "file"], 1),
    "render": (["proxy", "render"], 1),
}


@pytest.mark.parametrize("command", ASKING)
def test_no_server(command: str, kubeconfig: str) -> None:
    arguments, code = ASKING[command]
    done = CliRunner().invoke(main, [*arguments, "--kubeconfig", kubeconfig])
    assert done.exit_code == code
    assert done.stderr.startswith("Error: http://127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ASKING)
def test_no_such_context(command: str, kubeconfig: str) -> None:
    arguments, code = ASKING[command]
    done = CliRunner().invoke(
        main, [*arguments, "--kubeconfig", kubeconfig, "--context", "elsewhere"]
    )
    assert done.exit_code == code
    assert (
        done.stderr
        == f"Error: kubeconfig {kubeconfig}: Context 'elsewhere' not found, only nowhere\n"
    )


@pytest.fixture
def nonsense(tmp_path: Path) -> Iterator[str]:
    """A kubeconfig of a server whose answer to everything is a list of numbers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"kind":"List","items":[1,2]}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """A client that hangs up is none; what is printed would look like the command's own
            words.
            """

    with Quiet(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = tmp_path / "nonsense"
        path.write_text(KUBECONFIG.replace("127.0.0.1:1", f"127.0.0.1:{server.server_port}"))
        yield str(path)
        server.shutdown()


@pytest.mark.parametrize("command", ["trace", "save", "render"])
def test_a_server_that_talks_nonsense(command: str, nonsense: str, tmp_path: Path) -> None:
    arguments, code = ASKING[command]
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(main, [*arguments, "--kubeconfig", nonsense])
    assert done.exit_code == code
    assert done.stderr.startswith("Error: ")
    assert "server sent" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"\xa5\xff", "is neither YAML nor JSON: invalid UTF-8"),
        (b"{}", "has something without a kind: {}"),
        (b"[1]", "has something that is no object: [1]"),
        (b"a: [", "is neither YAML nor JSON: "),
        (b"[" * 100_000, "is neither YAML nor JSON: line 1: exceeded max depth"),
    ],
    ids=["empty", "binary", "no-kind", "list", "cut", "deep"],
)
def test_files_that_cannot_be_rendered(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "objects"
    path.write_bytes(content)
    done = CliRunner().invoke(main, ["proxy", "render", "--filename", str(path)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {path} {sentence}")
    assert done.stderr.count("\n") == 1


def test_an_answer_that_cannot_be_printed_is_a_failure() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "sliceplane", "estimate", "--pods", "2"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": "src"},
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "Error: cannot write to stdout: no space left on device\n",
    )


def test_what_strangers_wrote_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show("node \x1b]0;mine\x07 \u202egnp.exe\nzone – 1.00 ×\t✓")
    assert capsys.readouterr().out == "node \\x1b]0;mine\\x07 \\u202egnp.exe\nzone – 1.00 ×\t✓\n"


def test_every_group_of_commands_says_in_a_line_what_each_does() -> None:
    """click cuts a first sentence that is too long, and leaves three dots."""
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            listed = (
                CliRunner()
                .invoke(main, [name, "--help"], terminal_width=80)
                .output.partition("Commands:")[2]
            )
            assert "..." not in listed, name
