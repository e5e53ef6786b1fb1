"""The data folder of ``sliceplane up``, and the plane that currently runs from it.

``server.io.datadir`` defines its layout. Clients find the plane of this user here if there is no
kubeconfig.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sliceplane.kit.io.start_error import StartError

KUBECONFIG: Final = "admin.kubeconfig"


def default_data_dir() -> Path:
    """Returns ``$XDG_DATA_HOME/sliceplane``, by default ``~/.local/share/sliceplane`` (XDG base
    directories). Raises ``StartError`` for a user without a home.
    """
    base = os.environ.get("XDG_DATA_HOME", "")
    # The specification says to ignore a relative path.
    if base.startswith("/"):
        return Path(base) / "sliceplane"
    try:
        return Path.home() / ".local" / "share" / "sliceplane"
    except RuntimeError as error:
        raise StartError(
            "there is no home directory for the data: set HOME or XDG_DATA_HOME, or name a folder "
            "with --data-dir"
        ) from error


def running_plane() -> Path | None:
    """Returns the kubeconfig of the plane that runs from this user's default data folder; ``None``
    if none runs.

    It reads the kernel's list of locks instead of trying the lock: taking it briefly could prevent
    a plane from starting.
    """
    try:
        folder = default_data_dir()
        lock = (folder / "lock").stat()
        locks = Path("/proc/locks").read_text().splitlines()
    except (StartError, OSError):
        return None
    device = f"{os.major(lock.st_dev):02x}:{os.minor(lock.st_dev):02x}:{lock.st_ino}"
    kubeconfig = folder / KUBECONFIG
    is_running = any(f" {device} " in line and "FLOCK" in line for line in locks)
    return kubeconfig if is_running and kubeconfig.exists() else None
