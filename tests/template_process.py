"""Our programs start from a process that has loaded them already: a start costs a fork, not half a
second of imports.

A test still starts ``python -m sliceplane ...`` with ``subprocess`` or ``asyncio``, and gets a
process of its own: its child, with the standard streams, the environment and the folder that it
gave, in which the command line begins where it always does. What makes it is a *template*, a
process without any test in it that loaded what our programs load; it clones itself, and the clone's
parent is the test's process (``CLONE_PARENT``).

A start that asks for anything else than streams, environment, folder, session and ``ip netns exec``
is made as always, and so is one with ``FRESH`` in its environment: for what imports cost, or lack.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import os
import pickle
import pkgutil
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import sliceplane

#: in the environment of a start: a new interpreter, please
FRESH: Final = "SLICEPLANE_TEST_FRESH_PROCESS"
ROOT: Final = Path(__file__).parents[1]
#: whose modules the template runs
PACKAGES: Final = ("sliceplane", "benchmarks")
WORKER: Final = "sliceplane.server.io.offload.worker"
#: not loaded before it is asked for: other packages' threads and settings, the program itself
_LATER: Final = (
    *(f"sliceplane.server.io.storage.{name}" for name in ("etcd", "replicated", "shared")),
    "sliceplane.pytest_plugin",
    WORKER,
)
_SERVE: Final = "from tests.template_process import serve; serve()"
_CLONE_PARENT: Final = 0x8000
_SYS_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_NEWNET, _NEWNS, _SLAVE, _RECURSIVE, _DETACH = 0x4000_0000, 0x2_0000, 1 << 19, 1 << 14, 2
_INSIDE: Final = ["ip", "netns", "exec"]
_HEAD: Final = struct.Struct("=I")


class Start(NamedTuple):
    #: of ``ip netns exec``; empty: ours
    namespace: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    new_session: bool
    #: ours
    hanging_up: signal.Handlers


# In the test's process


class Template:
    """The template of this process, started when something is to be started for the first time."""

    def __init__(self) -> None:
        self._made_by = 0
        self._home: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, start: Start, streams: tuple[int, int, int]) -> int | None:
        """The process id of our new child; nothing if it cannot be made here."""
        if self._made_by != os.getpid():  # none, or that of a process from which we forked
            self.close()
            self._make()
        if self._home is None:
            return None
        data = pickle.dumps(start)
        try:
            socket.send_fds(self._home, [_HEAD.pack(len(data))], streams)
            self._home.sendall(data)
            pid: int = _HEAD.unpack(self._home.recv(_HEAD.size, socket.MSG_WAITALL))[0]
        except (OSError, struct.error):  # it ended; the next start makes another
            self.close()
            self._made_by = pid = 0
        return pid or None

    def close(self) -> None:
        if self._home is not None:
            self._home.close()
            self._home = None
        if self._process is not None and self._made_by == os.getpid():
            self._process.wait()

    def _make(self) -> None:
        self._made_by = os.getpid()
        home, away = socket.socketpair()
        with away:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE],
                stdin=away,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
                    "PYTHONUNBUFFERED": "",
                },
            )
        self._home = home


_template: Final = Template()
_original: Final = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_signature: Final = inspect.signature(_original)
#: what a start may ask for; all else has its usual value
_HEEDED: Final = {
    *("self", "args", "cwd", "env", "start_new_session"),
    *("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"),
}
_USUAL: Final = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "pass_fds": (),
    "startupinfo": None,
    "creationflags": 0,
    "shell": False,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
    "process_group": -1,
}


_interpreter: Final[dict[str, str]] = {}


def end() -> None:
    _template.close()


def install() -> None:
    """From now on ``subprocess``, and ``asyncio`` with it, starts our programs so."""
    _interpreter.update(_of_interpreter(dict(os.environ)))
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def _execute_child(*arguments: Any, **named: Any) -> None:
    asked = _signature.bind(*arguments, **named).arguments
    process, start = asked["self"], _start(asked)
    if start is not None:
        streams = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
        pid = _template.start(
            start, tuple(own if fd == -1 else fd for own, fd in enumerate(streams))
        )
        if pid is not None:
            process.pid = pid
            process._child_created = True
            process._close_pipe_fds(
                *(
                    asked[name]
                    for name in (
                        "p2cread",
                        "p2cwrite",
                        "c2pread",
                        "c2pwrite",
                        "errread",
                        "errwrite",
                    )
                )
            )
            return
    _original(*arguments, **named)


def _start(asked: dict[str, Any]) -> Start | None:
    """What the template can make of it, if it can."""
    if any(
        value != _USUAL.get(name, value) for name, value in asked.items() if name not in _HEEDED
    ):
        return None
    command = asked["args"]
    words = (
        []
        if isinstance(command, str | bytes | os.PathLike)
        else [os.fsdecode(word) for word in command]
    )
    namespace = words[3] if words[:3] == _INSIDE else ""
    if namespace:
        if (Path("/etc/netns") / namespace).exists():
            return None
        words = words[4:]
    if words[:2] != [sys.executable, "-m"] or words[2].partition(".")[0] not in PACKAGES:
        return None
    environment = dict(os.environ if asked["env"] is None else asked["env"])
    if FRESH in environment or _of_interpreter(environment) != _interpreter:
        return None
    folder, ignored = (
        os.fspath(asked["cwd"] or Path.cwd()),
        signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
    )
    hanging_up = signal.SIG_IGN if ignored else signal.SIG_DFL
    return Start(
        namespace, words[2:], environment, folder, bool(asked["start_new_session"]), hanging_up
    )


def _of_interpreter(environment: dict[str, str]) -> dict[str, str]:
    """What is read when an interpreter begins, but for a path on which our packages are."""
    ours = {str(ROOT), str(ROOT / "src"), "src", "", *sys.path}
    read = {
        name: value
        for name, value in environment.items()
        if name.startswith(("PYTHON", "LC_ALL", "LD_"))
    }
    for heeded in ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"):
        read.pop(heeded, None)
    if set(read.get("PYTHONPATH", "").split(os.pathsep)) <= ours:
        read.pop("PYTHONPATH", None)
    return read


# In the template


def serve() -> None:
    """Clone as often as is asked; what a clone does is done here, at its end, by its own
    process.
    """
    for module in pkgutil.walk_packages(sliceplane.__path__, "sliceplane."):
        if not module.name.startswith(_LATER) and not module.name.endswith("__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # of an extra that is not installed
                importlib.import_module(module.name)
    assert "grpc" not in sys.modules
    assert threading.active_count() == 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a person ends the tests, and they end us
    gc.collect()
    gc.freeze()
    home = socket.socket(fileno=os.dup(0))
    while True:
        head, streams, _, _ = socket.recv_fds(home, _HEAD.size, 3)
        if not head:
            return
        start = pickle.loads(home.recv(_HEAD.unpack(head)[0], socket.MSG_WAITALL))
        pid = _clone()
        if pid == 0:
            break
        for stream in streams:
            os.close(stream)
        if pid < 0:
            home.sendall(_HEAD.pack(0))
    made = 0
    try:
        _settle(start, streams)
        made = os.getpid()
    finally:
        home.sendall(_HEAD.pack(made))
        home.close()
    _run(start.arguments[0])


def _run(module: str) -> None:
    """As ``python -m``, but what is loaded is not taken apart at the end: that would copy all of
    the template's memory, which costs more than most of our programs do.
    """
    code: object = 0
    try:
        if not hasattr(sys.modules.get(module), "__path__"):
            sys.modules.pop(
                module, None
            )  # runpy warns of a module that is loaded; of a package it runs ``__main__``
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code or 0
        if not isinstance(code, int):
            raise
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # the interpreter has words and a code for that
    os._exit(code & 0xFF)


def _clone() -> int:
    """As ``os.fork``, but the parent is ours; -1 where that is not allowed."""
    number = _SYS_CLONE.get(os.uname().machine)
    if number is None:
        return -1
    python, kernel = ctypes.pythonapi, ctypes.PyDLL(None)
    python.PyOS_BeforeFork()
    pid: int = kernel.syscall(number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    return pid


def _enter(namespace: str) -> None:
    """As ``ip netns exec`` does: the network, and what ``/sys`` tells of it, in mounts of our
    own.
    """
    kernel = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", "rb") as place:
        results = [kernel.setns(place.fileno(), _NEWNET)]
    results += [
        kernel.unshare(_NEWNS),
        kernel.mount(b"", b"/", b"none", _RECURSIVE | _SLAVE, None),
        kernel.umount2(b"/sys", _DETACH),
        kernel.mount(namespace.encode(), b"/sys", b"sysfs", 0, None),
    ]
    if any(results):
        raise OSError(ctypes.get_errno(), f"namespace {namespace}: {results}")


def _settle(start: Start, streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if start.new_session:
        os.setsid()
    if start.namespace:
        _enter(start.namespace)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, start.hanging_up)
    at_once = bool(start.environment.get("PYTHONUNBUFFERED"))
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty(), write_through=at_once)  # type: ignore[union-attr]
    os.chdir(start.folder)
    os.environ.clear()
    os.environ.update(start.environment)
    time.tzset()
    sys.argv[:] = start.arguments
