"""``sliceplane snapshot`` beside a server that is written to, and a server made of the file."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.running import ROOT, Plane, running_plane
from tests.e2e.test_kill9 import Api
from tests.waiting import until

from sliceplane.kit.io.start_error import StartError
from sliceplane.server.io.datadir import DataDir
from sliceplane.server.io.storage.sqlite import SqliteBackend
from sliceplane.server.store.backend import REVISIONS_BEYOND

PYTHON = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """For all tests: who saves it changes nothing."""
    with running_plane(tmp_path_factory.mktemp("plane"), command="apiserver") as running:
        yield running


def snapshot(*arguments: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit or 0, limit or 0))

    return subprocess.run(
        [sys.executable, "-m", "sliceplane", "snapshot", *map(str, arguments)],
        env=PYTHON,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=small if limit is not None else None,
    )


def put(api: Api, name: str, value: str) -> int:
    """The new object's version."""
    code, made = api.call("POST", MAPS, {"metadata": {"name": name}, "data": {"value": value}})
    assert code == 201, made
    return int(made["metadata"]["resourceVersion"])


def maps(api: Api) -> dict[str, dict[str, object]]:
    code, found = api.call("GET", MAPS)
    assert code == 200
    return {item["metadata"]["name"]: item for item in found["items"]}


def test_a_server_made_of_a_snapshot_shows_its_moment_and_never_repeats_a_version(
    plane: Plane, tmp_path: Path
) -> None:
    api = Api(plane)
    for number in range(50):
        put(api, f"before-{number}", "x" * 1000)
    stop = threading.Event()
    acknowledged: list[int] = []

    def write() -> None:
        writer = Api(plane)
        while not stop.is_set():
            acknowledged.append(put(writer, f"meanwhile-{len(acknowledged)}", "y"))
        writer.close()

    writing = threading.Thread(target=write)
    writing.start()
    file = tmp_path / "copy"
    done = snapshot("save", file, "--kubeconfig", plane.kubeconfig)
    stop.set()
    writing.join()
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    revision = json.loads(file.read_bytes().partition(b"\n")[0])["revision"]
    assert f"of revision {revision} to {file}" in done.stdout
    later = put(api, "after", "z")
    before = maps(api)
    api.close()

    folder = tmp_path / "second"
    done = snapshot("restore", file, "--data-dir", folder)
    assert done.returncode == 0, done.stderr
    assert f"versions go on from {revision + 1_000_000_000}" in done.stdout
    with running_plane(tmp_path, data_dir=str(folder), command="apiserver") as second:
        other = Api(second)
        found = maps(other)
        # exactly the acknowledged ones up to the snapshot's revision, as they were
        assert found == {
            name: item
            for name, item in before.items()
            if int(str(item["metadata"]["resourceVersion"])) <= revision  # type: ignore[index, call-overload]  # JSON
        }
        assert len(found) >= 50
        assert put(other, "new", "v") > later, "no version twice"
        code, told = other.call(
            "GET", f"{MAPS}?watch=true&resourceVersion={later}&timeoutSeconds=1"
        )
        assert (code, told.get("reason", told.get("object", {}).get("reason"))) in (
            (410, "Expired"),
            (200, "Expired"),
        )
        other.close()


def test_what_cannot_be_saved_leaves_nothing(plane: Plane, tmp_path: Path) -> None:
    file = tmp_path / "copy"
    full = snapshot("save", file, "--kubeconfig", plane.kubeconfig, limit=4096)
    assert full.returncode == 1
    assert full.stderr == f"Error: cannot write {file}: file too large\n"
    assert not list(tmp_path.glob("*copy*"))
    nowhere = snapshot("save", tmp_path / "no" / "copy", "--kubeconfig", plane.kubeconfig)
    assert (nowhere.returncode, nowhere.stderr) == (
        1,
        f"Error: cannot write {tmp_path}/no/copy: no such file or directory\n",
    )


def test_the_next_one_removes_what_a_killed_one_left(plane: Plane, tmp_path: Path) -> None:
    name = "all [1].jsonl"  # nothing that a pattern would match literally
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    left, alive, other = (tmp_path / f".{name}.{end}" for end in (dead.pid, os.getpid(), "old"))
    for path in (left, alive, other):
        path.write_text("secret")
    done = snapshot("save", tmp_path / name, "--kubeconfig", plane.kubeconfig)
    assert done.returncode == 0, done.stderr
    assert not left.exists()
    assert alive.exists()
    assert other.exists()


def test_a_snapshot_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    """The server accepts and says nothing: there is an unfinished file when SIGTERM comes."""
    portion = b'9\r\n{"format"\r\n'
    with socket.create_server(("127.0.0.1", 0)) as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(
            json.dumps(
                {
                    "clusters": [
                        {
                            "name": "x",
                            "cluster": {"server": f"http://127.0.0.1:{server.getsockname()[1]}"},
                        }
                    ],
                    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                    "users": [{"name": "x", "user": {}}],
                    "current-context": "x",
                }
            )
        )
        command = [sys.executable, "-m", "sliceplane", "snapshot", "save", tmp_path / "all.jsonl"]
        saving = subprocess.Popen([*command, "--kubeconfig", kubeconfig], env=PYTHON)
        peer, _ = server.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + portion)
            until(lambda: list(tmp_path.glob(".all.jsonl.*")))
            saving.terminate()
            assert saving.wait(timeout=60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == [kubeconfig]


def test_restoring_replaces_nothing_and_trusts_no_file(plane: Plane, tmp_path: Path) -> None:
    file, folder = tmp_path / "copy", tmp_path / "second"
    assert snapshot("save", file, "--kubeconfig", plane.kubeconfig).returncode == 0
    assert "whole: " in snapshot("inspect", file).stdout
    text = file.read_bytes()
    file.write_bytes(text[:-200])
    cut = snapshot("restore", file, "--data-dir", folder)
    assert cut.returncode == 1
    assert "it is cut off after" in cut.stderr
    assert {each.name for each in folder.iterdir()} == {"lock"}
    file.write_bytes(text)
    # the server of the fixture is at work there
    busy = snapshot("restore", file, "--data-dir", Path(plane.kubeconfig).parent)
    assert busy.returncode == 1
    assert re.search(r"process \d+ \(.*\) is using it", busy.stderr)
    assert snapshot("restore", file, "--data-dir", folder).returncode == 0
    again = snapshot("restore", file, "--data-dir", folder)
    assert again.returncode == 1
    assert "sliceplane.db exists: restoring replaces nothing" in again.stderr
    full = snapshot("restore", file, "--data-dir", tmp_path / "third", limit=8192)
    assert full.returncode == 1, full.stdout
    assert "cannot restore into" in full.stderr
    assert {each.name for each in (tmp_path / "third").iterdir()} == {"lock"}


#: ``sliceplane`` that kills itself at the so-manieth thing that it does to files after its database
#: was begun
KILLED = """
import os, runpy, signal, sys
begun, left = False, int(sys.argv.pop(1))
def on_event(event, arguments):
    global begun, left
    if begun and event.startswith(("open", "os.", "fcntl.")):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    begun = begun or event == "sqlite3.connect/handle"
sys.addaudithook(on_event)
runpy.run_module("sliceplane", run_name="__main__")
"""


def test_a_restore_that_is_killed_leaves_no_beginning(plane: Plane, tmp_path: Path) -> None:
    """At any moment of it: a server does not begin with nothing, and the restore can be done
    again.
    """
    file, folder = tmp_path / "copy", tmp_path / "second"
    assert snapshot("save", file, "--kubeconfig", plane.kubeconfig).returncode == 0
    arguments = ["snapshot", "restore", str(file), "--data-dir", str(folder)]
    halfway = whole = 0
    for moment in (1, 3, 5, 7, 8):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(moment), *arguments], env=PYTHON, check=False
        )
        assert killed.returncode == -signal.SIGKILL
        opened = DataDir.open(str(folder))
        if (folder / "sliceplane.db").exists():
            whole += 1
            opened.check_database()
        else:
            halfway += 1
            with pytest.raises(StartError, match="a restore was begun and did not end"):
                opened.check_database()
        opened.close()
    assert (halfway > 2, whole) == (True, 1), (
        "the last moment is that after the database has got its name"
    )
    for left in folder.glob("sliceplane.db*"):
        left.unlink()
    assert snapshot("restore", file, "--data-dir", folder).returncode == 0
    backend = SqliteBackend.open(folder / "sliceplane.db")
    assert backend.load().revision > REVISIONS_BEYOND
    backend.close()
    assert not list(folder.glob("restoring.db*"))


def test_a_restore_beside_the_log_of_another_database_is_refused(
    plane: Plane, tmp_path: Path
) -> None:
    """It would be copied into the new one."""
    file, folder = tmp_path / "copy", tmp_path / "second"
    assert snapshot("save", file, "--kubeconfig", plane.kubeconfig).returncode == 0
    folder.mkdir()
    (folder / "sliceplane.db-wal").write_bytes(b"x" * 5000)
    refused = snapshot("restore", file, "--data-dir", folder)
    assert refused.returncode == 1
    assert "sliceplane.db-wal exists: restoring replaces nothing; move it away" in refused.stderr


def test_only_who_has_the_right_gets_it(plane: Plane) -> None:
    context = ssl.create_default_context(
        cafile=str(Path(plane.kubeconfig).parent / "pki" / "ca.crt")
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{plane.url}/sliceplane/snapshot", context=context, timeout=60)
    assert refused.value.code == 403
    refused.value.close()
