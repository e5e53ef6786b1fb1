"""The process of an agent that was killed: adopted or ended by the next start, and never
doubled.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.e2e.running import ROOT
from tests.waiting import eventually, until

from sliceplane.agent.io.child import Child
from sliceplane.agent.io.orphan import EXIT_UNKNOWN, AdoptedProcess, Custody, OnOrphan, read_record
from sliceplane.kit.io.identity import ProcessIdentity, identity

PYTHON = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
COMMAND = ("sh", "-c", "while :; do sleep 0.1; done")
AGENT = textwrap.dedent("""
    import asyncio, sys
    from pathlib import Path
    from sliceplane.agent.io.child import Child
    from sliceplane.agent.io.orphan import Custody

    async def main():
        custody = Custody(Path(sys.argv[1]), sys.argv[2], 5.0)
        child = await Child.start(sys.argv[3:], lambda: print("ready", flush=True), custody, print)
        print(child._process.pid, flush=True)
        await child.wait()

    asyncio.run(main())
""")


def killed_agent(
    record: Path, on_orphan: OnOrphan, *command: str, ready: bool = False
) -> ProcessIdentity:
    """The child of an agent that started it and was killed."""
    agent = subprocess.Popen(
        (sys.executable, "-c", AGENT, str(record), on_orphan, *command),
        env=PYTHON,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert agent.stdout is not None
    child = identity(int(agent.stdout.readline()))
    assert child is not None
    if ready:
        assert agent.stdout.readline() == "ready\n"
    agent.kill()
    agent.wait()
    agent.stdout.close()  # which the child has, too
    return child


@pytest.fixture
def custody(tmp_path: Path) -> Custody:
    return Custody(tmp_path / "vm.child", "adopt", 5.0)


def notify_folder(custody: Custody) -> Path:
    record = read_record(custody.record)
    assert record is not None
    return Path(record.notify).parent


async def test_the_folder_of_a_process_that_ended_meanwhile_goes_with_the_next_start(
    custody: Custody,
) -> None:
    left = killed_agent(custody.record, "adopt", *COMMAND)
    folder = notify_folder(custody)
    os.kill(left.pid, signal.SIGKILL)
    await eventually(lambda: not left.is_alive)
    assert folder.exists()
    child = await Child.start(("sh", "-c", "exit 7"), lambda: None, custody, lambda _: None)
    await child.wait()
    child.close()
    assert not folder.exists()


async def test_a_record_cannot_have_another_folder_removed(
    custody: Custody, tmp_path: Path
) -> None:
    left = killed_agent(custody.record, "adopt", *COMMAND)
    record = read_record(custody.record)
    assert record is not None
    os.kill(left.pid, signal.SIGKILL)
    await eventually(lambda: not left.is_alive)
    others = tmp_path / "mine"
    others.mkdir(mode=0o700)
    replace(record, notify=str(others / "notify")).write(custody.record)
    child = await Child.start(("sh", "-c", "exit 7"), lambda: None, custody, lambda _: None)
    await child.wait()
    child.close()
    assert others.exists()
    shutil.rmtree(Path(record.notify).parent)


async def test_the_next_start_adopts_the_process_and_hears_of_its_end(custody: Custody) -> None:
    left = killed_agent(custody.record, "adopt", *COMMAND)
    assert left.is_alive
    said: list[str] = []
    child = await Child.start(COMMAND, lambda: None, custody, said.append)
    assert said == [f"process {left.pid} was left by an agent that was killed: it is adopted"]
    waiting = [asyncio.create_task(child.wait()) for _ in range(2)]
    await asyncio.sleep(0.2)
    assert child.is_running
    assert not waiting[0].done()
    os.kill(left.pid, signal.SIGKILL)
    assert await asyncio.gather(*waiting) == [EXIT_UNKNOWN] * 2
    assert child.outcome(EXIT_UNKNOWN).endswith("its exit code is unknown")
    child.close()
    assert not custody.record.exists()


async def test_an_adopted_process_is_ended_as_one_of_its_own(custody: Custody) -> None:
    left = killed_agent(custody.record, "adopt", *COMMAND)
    child = await Child.start(COMMAND, lambda: None, custody, lambda _: None)
    assert await child.end(5.0) == EXIT_UNKNOWN
    assert not left.is_alive
    child.close()


async def test_what_an_adopted_process_says_is_heard_as_before(
    custody: Custody, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    program = (
        "import os, pathlib, socket, time\n"
        "def say():\n"
        "    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:\n"
        "        s.sendto(b'READY=1', os.environ['NOTIFY_SOCKET'])\n"
        "say()\n"
        f"while not pathlib.Path({str(again)!r}).exists(): time.sleep(0.05)\n"
        "say()\n"
        "time.sleep(600)"
    )
    command = (sys.executable, "-S", "-c", program)
    killed_agent(custody.record, "adopt", *command, ready=True)
    heard: list[float] = []
    child = await Child.start(
        command, lambda: heard.append(time.monotonic()), custody, lambda _: None
    )
    try:
        await eventually(lambda: len(heard) == 1)  # it was ready before
        again.touch()
        await eventually(lambda: len(heard) == 2)
    finally:
        await child.end(0.0)
        child.close()


@pytest.mark.parametrize("on_orphan", ["adopt", "end"])
async def test_another_command_ends_the_old_process_before_the_new_one_starts(
    custody: Custody, on_orphan: OnOrphan
) -> None:
    left = killed_agent(custody.record, "adopt", *COMMAND)
    folder = notify_folder(custody)
    command = ("sh", "-c", "exit 7") if on_orphan == "adopt" else COMMAND
    said: list[str] = []
    child = await Child.start(
        command, lambda: None, custody._replace(on_orphan=on_orphan), said.append
    )
    assert said == [f"process {left.pid} was left by an agent that was killed: it was ended"]
    assert not left.is_alive
    assert not folder.exists()
    assert await (child.wait() if on_orphan == "adopt" else child.end(5.0)) in (
        7,
        128 + signal.SIGTERM,
    )
    child.close()


def test_a_process_ends_with_its_agent_where_that_was_chosen(custody: Custody) -> None:
    left = killed_agent(custody.record, "end", *COMMAND)
    until(lambda: not left.is_alive)


async def test_a_record_of_another_process_is_no_process_of_ours(custody: Custody) -> None:
    left = killed_agent(custody.record, "adopt", *COMMAND)
    record = read_record(custody.record)
    assert record is not None
    assert custody.record.stat().st_mode & 0o777 == 0o600
    try:
        replace(record, process=replace(left, start=left.start + 1)).write(custody.record)
        child = await Child.start(("sh", "-c", "exit 7"), lambda: None, custody, lambda _: None)
        assert await child.wait() == 7
        child.close()
        assert left.is_alive, "an id that was used again is never killed"
        with pytest.raises(ProcessLookupError):
            AdoptedProcess(replace(left, boot="another"))
        custody.record.write_text("half of")
        assert read_record(custody.record) is None
    finally:
        os.kill(left.pid, signal.SIGKILL)
