"""Runs functions in another network namespace of this machine; the process stays in its own.

A thread belongs to a namespace, and a socket always to the namespace in which it was created. So a
new thread enters the namespace, runs the function (which opens a socket, or reads
``/proc/sys/net``) and ends; the other threads never leave their own namespace.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Final, TypeVar

T = TypeVar("T")

FOLDER: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000

#: opens a socket that accepts TCP connections at an address and a port; raises ``OSError``
Listen = Callable[[str, int], Awaitable[socket.socket]]


async def within(netns: str, work: Callable[[], T]) -> T:
    """Runs *work* in the namespace of that name ("": our own, at once) and returns its result.
    Raises ``OSError`` if the namespace cannot be entered. *work* must be short: nothing can
    interrupt it.
    """
    return await asyncio.wrap_future(_start_within(netns, work)) if netns else work()


def within_blocking(netns: str, work: Callable[[], T]) -> T:
    """Does the same as ``within``, in a thread that may block."""
    return _start_within(netns, work).result() if netns else work()


def _start_within(netns: str, work: Callable[[], T]) -> Future[T]:
    done: Future[T] = Future()

    def run() -> None:
        try:
            _enter(netns)
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    start_thread(Thread(target=run, name=f"netns {netns}", daemon=True))
    return done


def start_thread(thread: Thread) -> None:
    """Starts *thread*.  Raises ``OSError`` if the process can have no more threads, as for any other
    exhausted resource.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error


def _enter(netns: str) -> None:
    """Moves the calling thread into the namespace, permanently."""
    namespace = os.open(FOLDER / netns, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(FOLDER / netns))
    finally:
        os.close(namespace)


def listening_in(netns: str) -> Listen:
    """Returns a function that opens listening sockets in that namespace."""

    async def listen(host: str, port: int) -> socket.socket:
        return await within(netns, lambda: _listening(host, port))

    return listen


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind((host, port))
        opened.listen(128)
        opened.setblocking(False)
    except BaseException:
        opened.close()
        raise
    return opened
