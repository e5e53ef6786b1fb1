"""A network of the caller's own, in which every address of 10.0.0.0/8 is this machine's: Pods and
Services as local servers with the addresses that the API gives them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from demo.net import run_ip

_CLONE_NEWNET = 0x40000000


@contextmanager
def private_loopback() -> Iterator[None]:
    """The calling thread is in a network namespace of its own, and so are threads and processes
    that it starts. Needs root. A program without an address of its own calls a Pod from the Pod's
    address, so that a server on 0.0.0.0 knows which Pod was meant.
    """
    kernel = ctypes.CDLL(None, use_errno=True)
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if kernel.unshare(_CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        try:
            run_ip("link", "set", "lo", "up")
            run_ip("route", "add", "local", "10.0.0.0/8", "dev", "lo")
            yield
        finally:
            kernel.setns(home, _CLONE_NEWNET)
    finally:
        os.close(home)
