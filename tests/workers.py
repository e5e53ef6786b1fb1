"""Several processes for one run (``pytest -p tests.workers --workers 4``): tests are collected
once, then it forks.

Collecting ten thousand tests takes a processor 15 seconds, which workers that each collect on their
own (those of pytest-xdist) spend each; and what is loaded before the fork is shared. A file is the
unit of work, so that what it sets up once lives once. Two pipes hold the numbers of all files,
longest first: of those that compute, and of those that mostly wait. A worker takes its next file
out of one, and then out of the other, so that processors have something to do as long as tests wait
for clocks and processes; it sends home what it begins and how it ended.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import traceback
from collections.abc import Iterator
from functools import cache
from itertools import groupby, pairwise
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import pytest

#: "seconds CPU-seconds path", longest first; ``--record-longest`` writes it
LONGEST_FILES: Final = Path(__file__).with_name("longest_files.txt")
#: of the one file that a quick run has of a room whose files all take long
QUICK_S_MAX: Final = 3.0
#: A quick run has files of these rooms that take less: each rule needs a test that breaks it.
_QUICK_S_OF_ROOM: Final = {"tests/registry": 1.0}
#: A file waits if it keeps a processor busy for less than this share of its time.
_WAITING_SHARE: Final = 0.3
_NUMBER: Final = struct.Struct("=I")
#: a pipe holds at least so many bytes, and all its numbers are in it before the first is read
_PIPE_BYTES: Final = 65_536


class Cost(NamedTuple):
    """What a file of tests costs, its fixtures and the processes that it starts included."""

    seconds: float
    cpu_s: float

    @property
    def waits(self) -> bool:
        return self.cpu_s < self.seconds * _WAITING_SHARE


_QUICK: Final = Cost(0.0, 0.0)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="run the tests in so many processes")
    parser.addoption(
        "--quick",
        action="store_true",
        help=f"leave out the files of {LONGEST_FILES.name}, but one in each folder",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("workers") and not config.getoption("collectonly"):
        config.pluginmanager.register(_Parent())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is named on the command line is not asked about, so it is run however long it
    takes.
    """
    if not config.getoption("quick") or collection_path.suffix != ".py":
        return None
    return takes_long(collection_path, config.rootpath) or None


def takes_long(path: Path, root: Path) -> bool:
    """Returns True if a quick run leaves *path* out: it is in the table, and its room has a quicker
    file.
    """
    relative = path.relative_to(root)
    cost = cost_by_file().get(str(relative))
    if cost is None or cost.seconds < _QUICK_S_OF_ROOM.get(str(relative.parent), 0.0):
        return False
    return _kept_in_a_quick_run(path.parent, root) != path


@cache
def _kept_in_a_quick_run(folder: Path, root: Path) -> Path | None:
    """The shortest file of a room in which all files are in the table, if it is short enough."""
    costs = cost_by_file()
    by_path = {
        path: costs.get(str(path.relative_to(root)), _QUICK).seconds
        for path in sorted(folder.glob("test_*.py"))
    }
    shortest = min(by_path, key=by_path.__getitem__)
    return shortest if 0.0 < by_path[shortest] <= QUICK_S_MAX else None


@cache
def cost_by_file() -> dict[str, Cost]:
    """The table of files of tests that take long."""
    lines = (line.split() for line in LONGEST_FILES.read_text(encoding="utf-8").splitlines())
    return {path: Cost(float(seconds), float(cpu_s)) for seconds, cpu_s, path in lines}


class _Parent:
    """Tells what workers report as if the tests had run here."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed and not session.config.option.continue_on_collection_errors:
            raise session.Interrupted(f"{session.testsfailed} errors during collection")
        files = _files(session.items)
        queues = _queues(files)
        _prepare(session.config)
        count = min(session.config.getoption("workers"), len(files))
        homes: dict[Connection, _Worker] = {}
        for number in range(count):
            home, away = Pipe(duplex=False)
            process = os.fork()
            if not process:
                for of_parent in (home, *homes):
                    of_parent.close()
                _work(session, files, queues, away, number, count)
            away.close()
            homes[home] = _Worker(session.config, process, files)
        try:
            while homes and not session.shouldfail:
                for home in wait(list(homes)):
                    assert isinstance(home, Connection)
                    try:
                        homes[home].hear(*home.recv())
                    except EOFError:
                        homes.pop(home).end()
        finally:
            for queue in queues:
                os.close(queue)
            for home, worker in homes.items():
                home.close()  # they end with the test that they are at
                os.waitpid(worker.process, 0)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        return True


class _Worker:
    """One of them, seen from the parent."""

    def __init__(self, config: pytest.Config, process: int, files: list[list[pytest.Item]]) -> None:
        self.process = process
        self._config = config
        self._files = files
        #: what it took and has not ended, in its order
        self._taken: list[pytest.Item] = []

    def hear(self, what: str, told: Any) -> None:
        hook = self._config.hook
        if what == "takes":
            self._taken += self._files[told]
        elif what == "begins":
            hook.pytest_runtest_logstart(
                nodeid=self._taken[0].nodeid, location=self._taken[0].location
            )
        elif what == "reports":
            report = hook.pytest_report_from_serializable(config=self._config, data=told)
            hook.pytest_runtest_logreport(report=report)
        else:
            assert what == "ended"
            item = self._taken.pop(0)
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def end(self) -> None:
        """What a worker that died was at, and what it had taken, failed."""
        _, status = os.waitpid(self.process, 0)
        for item in self._taken:
            text = f"The worker ended here or before, with wait status {status}."
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
            self._config.hook.pytest_runtest_logreport(report=report)
        assert self._taken or not status, "a worker failed when its tests were done"


class _Child:
    """Sends reports home."""

    def __init__(self, session: pytest.Session, home: Connection) -> None:
        self._session = session
        self._home = home

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        config = self._session.config
        self.tell(
            "reports", config.hook.pytest_report_to_serializable(config=config, report=report)
        )

    def tell(self, what: str, told: Any = None) -> None:
        try:
            self._home.send((what, told))
        except BrokenPipeError:
            self._session.shouldstop = "the parent does not listen any more"


def _files(items: list[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests of each file; those first that took longest when ``LONGEST_FILES`` was written."""
    costs = cost_by_file()
    by_path = groupby(items, _path)
    return [
        list(of)
        for path, of in sorted(
            ((p, list(of)) for p, of in by_path), key=lambda at: -costs.get(at[0], _QUICK).seconds
        )
    ]


def _path(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _queues(files: list[list[pytest.Item]]) -> tuple[int, int]:
    """Pipes with the numbers of *files*: those that compute, and those that wait."""
    costs = cost_by_file()
    numbers: dict[bool, list[int]] = {False: [], True: []}
    for number, (first, *_) in enumerate(files):
        numbers[costs.get(_path(first), _QUICK).waits].append(number)
    return _filled(numbers[False]), _filled(numbers[True])


def _filled(numbers: list[int]) -> int:
    """The end of a pipe at which *numbers* are read."""
    assert len(numbers) * _NUMBER.size <= _PIPE_BYTES
    read_end, write_end = os.pipe()
    os.write(write_end, b"".join(map(_NUMBER.pack, numbers)))
    os.close(write_end)
    return read_end


def _prepare(config: pytest.Config) -> None:
    """What all share, and what must not be copied."""
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    assert threading.active_count() == 1, f"a fork would lose threads: {threading.enumerate()}"
    sys.stdout.flush()
    sys.stderr.flush()


def _work(
    session: pytest.Session,
    files: list[list[pytest.Item]],
    queues: tuple[int, int],
    home: Connection,
    number: int,
    count: int,
) -> NoReturn:
    """Runs files until there are none left: one worker for each processor, and another, prefers
    those that compute.
    """
    code = 1
    try:
        _settle(session.config, number, count)
        child = _Child(session, home)
        session.config.pluginmanager.register(child)

        preferred = queues if number <= (os.cpu_count() or 1) else queues[::-1]

        def taken() -> Iterator[tuple[pytest.Item, Any]]:
            """Each test, and the node until which all is taken down after it: a file is not taken
            before it begins.
            """
            for queue in preferred:
                while read := os.read(queue, _NUMBER.size):
                    (file,) = _NUMBER.unpack(read)
                    child.tell("takes", file)
                    yield from pairwise([*files[file], session])

        for item, following in taken():
            child.tell("begins")
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            child.tell("ended")
            if session.shouldfail or session.shouldstop:
                break
        session._setupstate.teardown_exact(None)
        code = 0
    except BaseException:
        with contextlib.suppress(OSError):
            traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def _settle(config: pytest.Config, number: int, count: int) -> None:
    """Gives a process its own name (that of pytest-xdist's), output, folder, and lock of iptables.

    The legacy flavour of iptables has one lock for all network namespaces: a test that writes
    100,000 rules would make tests of other processes fail.
    """
    os.environ["PYTEST_XDIST_WORKER"] = f"gw{number}"
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(count)
    config.get_terminal_writer()._file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as it lives
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folders: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    folders._basetemp = folders.getbasetemp() / f"gw{number}"
    folders._basetemp.mkdir(mode=0o700)
    os.environ["XTABLES_LOCKFILE"] = str(folders._basetemp / "xtables.lock")
