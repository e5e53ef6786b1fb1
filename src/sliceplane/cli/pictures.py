"""How pictures of ``--plot`` are written; their form follows the name's ending."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save(figure: Figure, path: Path) -> None:
    """Raises ``click.ClickException`` where it cannot.  The same picture is the same file, byte for
    byte.
    """
    import matplotlib as mpl

    stamps = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    metadata = stamps.get(path.suffix.lower().removeprefix("."))
    try:
        with mpl.rc_context({"svg.hashsalt": "sliceplane"}):
            figure.savefig(path, metadata=metadata)
    except OSError as error:
        raise click.ClickException(
            f"cannot draw into {path}: {(error.strerror or str(error)).lower()}"
        ) from error
    except ValueError as error:
        raise click.ClickException(f"cannot draw into {path}: {error}") from error
