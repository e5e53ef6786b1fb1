"""``sliceplane up`` and ``sliceplane apiserver`` as processes: the ready line, exit codes,
one-sentence errors.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.process_table import words_of
from tests.server.serving import complaints
from tests.waiting import until

from sliceplane.cli.main import main

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
PROGRAM = (sys.executable, "-m", "sliceplane")


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """A serving command that said that it is ready: the process, its URL and its kubeconfig."""
    # Whoever runs the tests with nohup has it ignored, and so would the child.
    hanging_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
    finally:
        signal.signal(signal.SIGHUP, hanging_up)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        word, url, kubeconfig = line.split() if line else ("", "", "")
        assert word == "ready", process.stderr.read()
        # What a person may do next.
        assert process.stdout.readline().endswith(
            f"export KUBECONFIG={kubeconfig.removeprefix('kubeconfig=')}\n"
        )
        assert [process.stdout.readline()[:10] for _ in range(2)] == ["  and then", "  to stop:"]
        yield process, url, Path(kubeconfig.removeprefix("kubeconfig="))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def refused(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command that must not start."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
        timeout=120,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def healthy(url: str, kubeconfig: Path) -> bool:
    return page(url, "/readyz", kubeconfig) == "ok"


def page(url: str, path: str, kubeconfig: Path) -> str:
    context = ssl.create_default_context(cafile=str(kubeconfig.parent / "pki" / "ca.crt"))
    try:
        with urllib.request.urlopen(url + path, context=context, timeout=60) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as refused:
        refused.close()  # its socket would be told of wherever it is collected
        raise


def ready(kubeconfig: Path) -> bool:
    url = re.findall(r"server: (\S+)", kubeconfig.read_text())[0]
    try:
        return healthy(url, kubeconfig)
    except urllib.error.HTTPError:
        return False


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("up", signal.SIGTERM),
        ("up", signal.SIGINT),
        ("up", signal.SIGHUP),
        ("apiserver", signal.SIGTERM),
    ],
)
def test_ready_serve_and_stop(tmp_path: Path, command: str, number: signal.Signals) -> None:
    data = tmp_path / "data"
    with running(command, "--data-dir", str(data), "--secure-port", "0") as (
        process,
        url,
        kubeconfig,
    ):
        assert kubeconfig == data / "admin.kubeconfig"
        assert stat.S_IMODE(kubeconfig.stat().st_mode) == 0o600
        assert healthy(url, kubeconfig)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, complaints(err)) == (
            0,
            f"stopped; what was written stays in {data}\n",
            [],
        )


@pytest.mark.parametrize(
    "streams", [">&- 2>&- <&-", ">/dev/full 2>/dev/full", "2>/dev/null | true"]
)
def test_nobody_listens_to_what_it_says(tmp_path: Path, streams: str) -> None:
    """Closed descriptors are not given to sockets, and a line that cannot be printed stops
    nothing.
    """
    data = tmp_path / "data"
    command = (
        f"echo $$ > {tmp_path}/pid; exec {' '.join(PROGRAM)} up --data-dir {data} --secure-port 0"
    )
    shell = subprocess.Popen(["sh", "-c", f"sh -c '{command}' {streams}"], env=ENVIRONMENT)
    try:
        kubeconfig = data / "admin.kubeconfig"
        # Nobody hears that it is ready, and it answers a little earlier: that it is not.
        until(lambda: kubeconfig.exists() and ready(kubeconfig))
        url = re.findall(r"server: (\S+)", kubeconfig.read_text())[0]
        for _ in range(3):
            assert healthy(url, kubeconfig)
    finally:
        pid = int((tmp_path / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
    until(
        Path(f"/proc/{pid}").exists,
        lambda exists: not exists or "sliceplane" not in words_of(pid),
    )
    shell.wait(60)
    if "|" not in streams:
        assert shell.returncode == 0


def test_memory_leaves_nothing_behind() -> None:
    with running("up", "--data-dir", "memory:", "--secure-port", "0") as (process, url, kubeconfig):
        assert healthy(url, kubeconfig)
        assert stat.S_IMODE(kubeconfig.parent.stat().st_mode) == 0o700
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert not kubeconfig.parent.exists()


def test_objects_and_credentials_survive_a_restart(tmp_path: Path) -> None:
    """Until an authority must be replaced, which is told of."""
    kubectl = shutil.which("kubectl", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    flags = ("--data-dir", str(tmp_path / "data"), "--secure-port", "0")
    seen = []
    told = []
    for damage in (False, False, True):
        if damage:
            (tmp_path / "data" / "pki" / "ca.crt").write_bytes(b"junk")
        with running("up", *flags) as (process, url, kubeconfig):
            assert healthy(url, kubeconfig)
            pki = {path.name: path.read_bytes() for path in (kubeconfig.parent / "pki").iterdir()}
            base = [
                str(kubectl),
                "--kubeconfig",
                str(kubeconfig),
                "--cache-dir",
                str(tmp_path / "cache"),
            ]
            columns = "custom-columns=NAME:.metadata.name,UID:.metadata.uid"
            get = subprocess.run(
                [*base, "get", "ns", "-o", columns], capture_output=True, text=True, check=True
            )
            seen.append((pki, get.stdout))
            process.send_signal(signal.SIGTERM)
            told.append(
                "copies of older kubeconfigs do not work any more"
                in process.communicate(timeout=60)[1]
            )
    assert seen[0] == seen[1]
    assert "kube-system" in seen[0][1]
    assert told == [False, False, True]
    assert seen[2][0]["ca.crt"] not in (seen[0][0]["ca.crt"], b"junk")
    assert seen[2][1] == seen[0][1]


def test_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, err = refused("up", "--data-dir", str(tmp_path / "data"), "--secure-port", str(port))
    assert code == 1
    assert err.startswith(
        f"Error: cannot listen on 127.0.0.1:{port}: address already in use: process {os.getpid()} ("
    )
    assert err.endswith("; --secure-port 0 takes a free port\n")


def test_address_that_is_not_here() -> None:
    code, err = refused(
        "up", "--data-dir", "memory:", "--bind-address", "192.0.2.1", "--secure-port", "0"
    )
    assert (code, err) == (
        1,
        "Error: cannot listen on 192.0.2.1:0: cannot assign requested address\n",
    )


def test_bad_data_dir(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for where in (tmp_path / "file", tmp_path / "file" / "below"):
        code, err = refused("up", "--data-dir", str(where), "--secure-port", "0")
        assert code == 1
        assert err.startswith(f"Error: data directory {where}: ")
        assert err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_data_dir_in_use(tmp_path: Path) -> None:
    flags = ("--data-dir", str(tmp_path), "--secure-port", "0")
    with running("up", *flags):
        code, err = refused("up", *flags)
    assert code == 1
    assert re.fullmatch(
        rf"Error: data directory {tmp_path}: process \d+ \(.*\) is using it, at https://127.0.0.1:\d+; --data-dir .*\n",
        err,
    )


def test_damaged_database_is_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "sliceplane.db"
    database.write_bytes(b"this is no database" * 1000)
    code, err = refused("up", "--data-dir", str(tmp_path), "--secure-port", "0")
    assert code == 1
    assert err.startswith("Error: ")
    assert str(database) in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert database.read_bytes() == b"this is no database" * 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "sliceplane.db"]


USAGE_ERRORS = [
    (("--secure-port", "70000"), "70000 is not in the range 0<=x<=65535"),
    (("--secure-port", "x"), "'x' is not a valid integer"),
    (("--bind-address", "localhost"), "'localhost' is not an IP address"),
    (
        ("--service-cluster-ip-range", "10.0.0.0/8,10.1.0.0/16"),
        "at most one range of each IP family",
    ),
    (("--service-cluster-ip-range", "10.0.0.1/8"), "has host bits set"),
    (("--service-cluster-ip-range", "10.0.0.0/31"), "too small"),
    (("--log-level", "loud"), "'loud' is not one of"),
    (("--what",), "No such option"),
]


@pytest.mark.parametrize(("flags", "message"), USAGE_ERRORS)
def test_usage_errors(flags: tuple[str, ...], message: str) -> None:
    # In this process, since nothing is started.
    done = CliRunner().invoke(main, ["up", *flags])
    assert done.exit_code == 64
    assert message in done.output


def test_token_file_and_its_errors(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.csv"
    tokens.write_text("only-a-token\n")
    code, err = refused(
        "apiserver", "--data-dir", "memory:", "--secure-port", "0", "--token-auth-file", str(tokens)
    )
    assert (code, err) == (
        1,
        f"Error: token file {tokens}, line 1: expected token,user,uid[,groups]\n",
    )


@pytest.mark.parametrize("command", ["up", "apiserver"])
def test_audit_log_and_the_page_of_who_asks_for_them(tmp_path: Path, command: str) -> None:
    log = tmp_path / "audit.log"
    flags = (command, "--data-dir", "memory:", "--secure-port", "0", "--audit-log-path", str(log))
    with running(*flags, "--audit-log-maxsize", "1", "--audit-log-maxbackup", "3", "--ui") as (
        process,
        url,
        kubeconfig,
    ):
        assert healthy(url, kubeconfig)
        assert process.stdout is not None
        assert re.fullmatch(
            rf"  in a browser:         {url}/ui/#login=[\w-]{{22}}\n", process.stdout.readline()
        )
        assert (
            process.stdout.readline().strip()
            == "logs in once, as sliceplane-admin, within 5 minutes"
        )
        assert "<title>Sliceplane</title>" in page(url, "/ui/", kubeconfig)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, complaints(err)) == (
            0,
            "stopped; all that was written is gone\n",
            [],
        )
    assert '"requestURI":"/readyz"' in log.read_text().splitlines()[-1]
    assert refused(*flags[:-1], str(tmp_path / "no" / "audit.log")) == (
        1,
        f"Error: cannot open the audit log {tmp_path}/no/audit.log: no such file or directory\n",
    )


def test_help_names_every_command_without_loading_it() -> None:
    code = (
        "import sys\nfrom sliceplane.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "loaded = {name for name in sys.modules if name.startswith('sliceplane.cli.')}\n"
        "assert loaded == {'sliceplane.cli.main', 'sliceplane.cli.options'}, loaded"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "apiserver" in done.stdout
    assert "up " in done.stdout
    for command in ("up", "apiserver"):
        shown = subprocess.run(
            [*PROGRAM, command, "--help"],
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
        assert "--service-cluster-ip-range" in shown.stdout


HEAVY = (
    "cryptography",
    "aiohttp",
    "google.protobuf",
    "rich",
    "prometheus_client",
    "structlog",
    "yaml",
)


def test_a_later_start_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\nfrom sliceplane.server.io.plane import PlaneConfig, ServerPlane\n"
        "async def main():\n"
        f"    plane = ServerPlane(PlaneConfig(data_dir={str(tmp_path)!r}, secure_port=0))\n"
        "    await plane.start()\n    await plane.stop()\n"
        "asyncio.run(main())\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    for expected in (["cryptography"], []):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env=ENVIRONMENT,
        )
        assert (done.stdout.strip(), done.stderr) == (str(expected), "")
