"""When a process saves its recording by itself, and what a crash, a kill and a full disk leave of a
file.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.waiting import eventually, until
from tests.watch.recorder.test_encoding import Told

from sliceplane.api.core import Node
from sliceplane.api.meta import ObjectMeta
from sliceplane.api.scheme import Nodes
from sliceplane.controllers.traffic_distribution import CACHE_DIFFERS
from sliceplane.diagnose.timeline.reader import entries
from sliceplane.watch.controller.base import EventNote, Work
from sliceplane.watch.io.flight import FILES_KEPT, QUIET_S, SUFFIX, FlightRecorder
from sliceplane.watch.recorder.entries import Marked
from sliceplane.watch.recorder.file import read_lines

ROOT = Path(__file__).parents[3]
#: writes recordings to the file of its first argument for ever; the second bounds their size
WRITER = """
import resource, sys
from pathlib import Path
from tests.watch.recorder.test_encoding import Told
from sliceplane.watch.recorder.file import Header, write_lines
from sliceplane.watch.io.flight import write_file
segments = Told(1, 600).recorder.segments()
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
print("ready", flush=True)
while True:
    write_file(Path(sys.argv[1]), write_lines(Header(), segments))
"""


class Setting:
    """A recorder with a clock and a state of health that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.now = 1_800_000_000.0
        self.problem = ""
        self.folder = folder
        self.flight = FlightRecorder(
            "plane", 1 << 20, folder, lambda: self.now, lambda: self.problem
        )

    def files(self) -> list[str]:
        return sorted(file.name for file in self.folder.glob(f"*{SUFFIX}"))


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path / "recordings")


def test_health_that_turns_red_saves_once(setting: Setting) -> None:
    setting.problem = "etcd: starting"
    assert setting.flight.take_save_reason() == "", "a process that starts is not well yet"
    setting.problem = ""
    assert setting.flight.take_save_reason() == ""
    setting.problem = "etcd: the disk is full"
    assert setting.flight.take_save_reason() == "health: etcd: the disk is full"
    assert setting.flight.take_save_reason() == "", "it is red already"


def test_a_controllers_fault_saves_and_a_crowd_of_faults_once(setting: Setting) -> None:
    recorder = setting.flight.recorder
    recorder.begin("one", setting.now).ended(setting.now, "ValueError: no")
    assert setting.flight.take_save_reason() == "a controller failed: ValueError: no"
    setting.now += QUIET_S - 1
    recorder.begin("one", setting.now).ended(setting.now, "ValueError: again")
    assert setting.flight.take_save_reason() == ""
    setting.now += 1
    recorder.trigger("a node diverged: node-7")
    assert setting.flight.take_save_reason() == "a node diverged: node-7"


def test_a_node_that_diverged_saves_and_other_events_do_not(setting: Setting) -> None:
    def note(reason: str) -> EventNote:
        node = Node(metadata=ObjectMeta(name="node-7"))
        return EventNote(
            regarding=node,
            regarding_resource=Nodes,
            type="Warning",
            reason=reason,
            note="why",
            component="one",
        )

    record = setting.flight.recorder.begin("one", setting.now)
    record.batch_taken(Work(notes=(note("Other"),)), 5, setting.now)
    assert setting.flight.take_save_reason() == ""
    record.batch_taken(Work(notes=(note(CACHE_DIFFERS),)), 5, setting.now)
    assert setting.flight.take_save_reason() == "a node diverged: node-7"
    recording = read_lines(list(setting.flight.lines("now")))
    marks = [entry.text for entry in entries(recording) if isinstance(entry, Marked)]
    assert marks == ["Node node-7: Other: why", f"Node node-7: {CACHE_DIFFERS}: why"]


def test_the_newest_files_are_kept_and_are_whole(setting: Setting) -> None:
    for number in range(FILES_KEPT + 3):
        setting.now += 60
        saved = asyncio.run(setting.flight.save(f"Reason {number}: /etc/passwd"))
        assert saved is not None
        assert saved.stat().st_mode & 0o777 == 0o600
    files = setting.files()
    assert len(files) == FILES_KEPT
    assert files[-1].endswith("-reason-12-etc-passwd.recording")
    for name in files:
        with (setting.folder / name).open("rb") as lines:
            assert read_lines(lines).problem == ""


def test_sigusr1_saves(setting: Setting) -> None:
    async def story() -> None:
        flying = asyncio.create_task(setting.flight.run())
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGUSR1)
        await eventually(setting.files)
        flying.cancel()
        await asyncio.gather(flying, return_exceptions=True)

    asyncio.run(story())
    assert [name.rpartition("-")[2] for name in setting.files()] == ["sigusr1.recording"]


def test_a_folder_that_cannot_be_written_is_told_and_harms_nothing(setting: Setting) -> None:
    setting.folder.parent.mkdir(exist_ok=True)
    setting.folder.write_text("a file")
    assert asyncio.run(setting.flight.save("why")) is None
    assert setting.folder.read_text() == "a file"


def writer(file: Path, limit_bytes: int = 0) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-c", WRITER, str(file), str(limit_bytes)]
    process = subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_kill_while_saving_leaves_a_whole_file_or_none(tmp_path: Path) -> None:
    file = tmp_path / f"a{SUFFIX}"
    for number in range(6):
        process = writer(file)
        until(
            file.exists, within_s=60
        )  # in the later rounds it is killed while it replaces that file
        time.sleep(0.01 * number)
        process.kill()
        process.communicate()
        with file.open("rb") as lines:
            assert read_lines(lines).problem == ""
    # What the dead left is taken away by the next that saves.
    setting = Setting(tmp_path)
    asyncio.run(setting.flight.save("tidy"))
    assert not list(tmp_path.glob(".*"))


def test_a_full_disk_leaves_the_file_of_before(tmp_path: Path) -> None:
    file = tmp_path / f"a{SUFFIX}"
    file.write_text("before")
    process = writer(file, limit_bytes=16_384)
    _, errors = process.communicate(timeout=60)
    assert "File too large" in errors
    assert file.read_text() == "before"
    assert [name.name for name in tmp_path.iterdir()] == [file.name]


@pytest.mark.kernel
def test_a_full_disk_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "recordings", str(folder)],
        check=True,
        timeout=60,
    )
    try:
        setting = Setting(folder)
        first = asyncio.run(setting.flight.save("first"))
        assert first is not None
        filler = folder / "filler"
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(1 << 20))
        setting.now += 60
        assert asyncio.run(setting.flight.save("second")) is None
        assert setting.files() == [first.name]
        with first.open("rb") as lines:
            assert read_lines(lines).problem == ""
        filler.unlink()
        assert asyncio.run(setting.flight.save("third")) is not None
        assert sorted(path.name for path in folder.iterdir()) == setting.files()
        assert len(setting.files()) == 2
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=60)


def test_what_is_told_while_a_file_is_written_is_not_in_it(setting: Setting) -> None:
    told = Told(2, 50)
    flight = setting.flight
    flight.recorder = told.recorder
    lines = flight.lines("now")
    first = next(lines)  # a generator: what is in it is settled before its first line
    told.recorder.mark("later", "not in it", told.now)
    told.recorder.encode()
    text = b"".join([first, *lines])
    assert b"not in it" not in text
    assert read_lines(text.splitlines(keepends=True)).problem == ""
