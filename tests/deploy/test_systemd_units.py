"""The units of ``deploy/systemd``: systemd takes them, and the programs in them say when they are
ready.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.running import ROOT, Plane, running_plane, spawn, stop
from tests.kernel.kube_proxy_table import TABLE
from tests.kernel.netns import Net

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
UNITS_BY_NAME = {path.stem: path for path in UNITS}
#: of systemd's own scale from 0 (nothing is allowed) to 10
EXPOSURE_MAX = {
    "sliceplane": 1.6,
    "sliceplane-agent": 1.6,
    "sliceplane-controllers": 1.6,
    "sliceplane-observer": 2.0,
    "sliceplane-proxy": 3.5,
    "sliceplane-relay": 1.6,
}
START_S = 120.0


def name(path: Path) -> str:
    return path.stem


def unit(path: Path) -> configparser.ConfigParser:
    # A name may stand more than once in a unit; those that are read here do not.
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(path, encoding="utf-8")
    return parser


@pytest.fixture(scope="module")
def systemd_analyze() -> str:
    """Of Debian's package ``systemd``."""
    found = shutil.which("systemd-analyze")
    if found is None and not os.environ.get("CI"):
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    assert found is not None
    return found


@pytest.mark.parametrize("path", UNITS, ids=name)
def test_systemd_takes_the_unit(path: Path, systemd_analyze: str, tmp_path: Path) -> None:
    # The program is where the tests have it, so that nothing at all may be said.
    text = path.read_text().replace(
        "/opt/sliceplane/bin/sliceplane", str(Path(sys.executable).with_name("sliceplane"))
    )
    (tmp_path / path.name).write_text(text)
    told = subprocess.run(
        [systemd_analyze, "verify", "--man=no", tmp_path / path.name],
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert told.returncode == 0
    assert told.stderr == ""


@pytest.mark.parametrize("path", UNITS, ids=name)
def test_the_unit_leaves_little_to_an_intruder(path: Path, systemd_analyze: str) -> None:
    told = subprocess.run(
        [systemd_analyze, "security", "--offline=true", "--no-pager", path],
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )
    level = re.search(r"Overall exposure level for \S+: ([\d.]+)", told.stdout)
    assert level is not None
    assert float(level[1]) <= EXPOSURE_MAX[path.stem], told.stdout


def test_capabilities_are_those_that_are_needed() -> None:
    bounds = {path.stem: unit(path)["Service"]["CapabilityBoundingSet"] for path in UNITS}
    for reading_rules in ("sliceplane-proxy", "sliceplane-observer"):
        assert bounds.pop(reading_rules) == "CAP_NET_ADMIN CAP_NET_RAW"
    others = ("sliceplane", "sliceplane-agent", "sliceplane-controllers", "sliceplane-relay")
    assert bounds == dict.fromkeys(others, "")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """What systemd listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(START_S)
        yield listening


def started(
    path: Path, folder: Path, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[bytes]:
    """The unit's own command line, with what systemd puts into it."""
    service = unit(path)["Service"]
    assert service["Type"] == "notify"
    own = {
        **dict([service["Environment"].split("=", 1)] if "Environment" in service else []),
        "NOTIFY_SOCKET": str(folder / "notify"),
        "STATE_DIRECTORY": str(folder / "state"),
        "CREDENTIALS_DIRECTORY": str(folder),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT / "src"),
        **environment,
    }
    words = [
        re.sub(r"\$\{(\w+)\}", lambda found: own[found[1]], word)
        for word in shlex.split(service["ExecStart"])
    ]
    assert words[0] == "/opt/sliceplane/bin/sliceplane"
    program = str(Path(sys.executable).with_name("sliceplane"))
    (folder / "state").mkdir(exist_ok=True)
    return subprocess.Popen(
        [*prefix, program, *words[1:]], env=own, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def _ends_well(process: subprocess.Popen[bytes], manager: socket.socket) -> None:
    process.send_signal(signal.SIGTERM)
    assert manager.recv(4096) == b"STOPPING=1"
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()


def test_the_plane_says_when_it_is_ready(manager: socket.socket, tmp_path: Path) -> None:
    process = started(UNITS_BY_NAME["sliceplane"], tmp_path, SLICEPLANE_UP_SECURE_PORT="0")
    try:
        told = manager.recv(4096).decode()
        kubeconfig = tmp_path / "state" / "admin.kubeconfig"
        assert re.fullmatch(
            rf"READY=1\nSTATUS=https://127\.0\.0\.1:\d+ kubeconfig={kubeconfig}", told
        )
        _ends_well(process, manager)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    with running_plane(tmp_path, command="apiserver") as plane:
        (tmp_path / "kubeconfig").write_text(Path(plane.kubeconfig).read_text())
        yield plane


def test_controllers_say_when_they_lead(
    plane: Plane, manager: socket.socket, tmp_path: Path
) -> None:
    path = UNITS_BY_NAME["sliceplane-controllers"]
    listen, _, address = unit(path)["Service"]["Environment"].partition("=")
    assert address == "127.0.0.1:10257"
    process = started(path, tmp_path, **{listen: "127.0.0.1:0"})  # that port may be in use here
    try:
        assert manager.recv(4096) == b"READY=1\nSTATUS=leading"
        _ends_well(process, manager)
    finally:
        process.kill()
        process.communicate()


def test_a_relay_says_when_it_has_listed(
    plane: Plane, manager: socket.socket, tmp_path: Path
) -> None:
    pki = Path(plane.kubeconfig).with_name("pki")
    for ending in ("crt", "key"):
        (tmp_path / f"relay.{ending}").write_bytes((pki / f"apiserver.{ending}").read_bytes())
    path = UNITS_BY_NAME["sliceplane-relay"]
    process = started(path, tmp_path, SLICEPLANE_RELAY_LISTEN="127.0.0.1:0")
    try:
        assert re.fullmatch(rb"READY=1\nSTATUS=127\.0\.0\.1:\d+", manager.recv(4096))
        _ends_well(process, manager)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.kernel
def test_the_proxy_says_when_the_kernel_has_the_rules(
    manager: socket.socket, tmp_path: Path
) -> None:
    with Net("sdu") as net:
        node = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        inside = tuple(node.place.command())
        server = spawn(tmp_path, command="apiserver", prefix=inside)
        try:
            (tmp_path / "kubeconfig").write_text(Path(server.kubeconfig).read_text())
            process = started(UNITS_BY_NAME["sliceplane-proxy"], tmp_path, inside)
            try:
                told = manager.recv(4096).decode()
                assert re.match(r"READY=1\nSTATUS=node=\S+ ipv4-services=\d", told)
                assert "table ip sliceplane" in node.exec(["nft", "list", "tables"]).stdout
                _ends_well(process, manager)
            finally:
                process.kill()
                process.communicate()
        finally:
            stop(server)


@pytest.mark.kernel
def test_the_observer_says_when_it_has_compared_the_rules(
    plane: Plane, manager: socket.socket, tmp_path: Path
) -> None:
    with Net("sou") as net:
        host = net.add_host("node", ip4="10.10.0.1/16", ip6="fd10::1/64")
        host.exec(["nft", "-f", "-"], stdin=TABLE.format(family="ip", address="ipv4_addr"))
        process = started(
            UNITS_BY_NAME["sliceplane-observer"],
            tmp_path,
            SLICEPLANE_OBSERVE_NETNS=host.netns,
        )
        try:
            told = manager.recv(4096).decode()
            assert re.match(r"READY=1\nSTATUS=node=\S+ rules=nftables ipv4-services=\d", told)
            _ends_well(process, manager)
        finally:
            process.kill()
            process.communicate()
