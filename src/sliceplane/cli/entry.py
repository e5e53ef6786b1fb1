"""The first code of the ``sliceplane`` program: an installation may lack the dependencies of a
command.

The plain package has the Python client and every command that only reads (``trace``, ``estimate``,
...). Commands that run a part of the plane need an extra. If it is missing, the command prints a
line that installs it, instead of a traceback. At module level only cheap modules of the standard
library may be imported.
"""

from __future__ import annotations

import gc
import os
import sys
from types import TracebackType

#: net new containers after which the garbage collector looks at the young ones
GC_YOUNG_OBJECTS = 50_000


def main() -> None:
    """The command line; exits with 1 and a sentence where an extra is missing."""
    if (
        "SLICEPLANE_PARENT" in os.environ
    ):  # a child of a plane: what it imports takes long, and its parent may end
        from sliceplane.kit.io.process.lifeline import end_with_parent

        end_with_parent()
    spare_collector()
    sys.excepthook = _print_traceback
    try:
        from sliceplane.cli.main import main as command

        command()
    except ModuleNotFoundError as error:
        from sliceplane.kit.io.extras import EXTRA_OF, requirement

        extra = EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        requested = "proxy" if extra == "server" and sys.argv[1:2] == ["proxy"] else extra
        sys.exit(
            f"Error: this needs {error.name}, which the plain package does not bring.  Install it "
            "with\n"
            f"  pip install {requirement(requested)}"
        )


def _print_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """A bug's traceback repeats values, which may be a stranger's."""
    from traceback import format_exception

    from sliceplane.kit.terminal_text import printable_lines

    sys.stderr.write(printable_lines("".join(format_exception(kind, error, trace))))


def spare_collector() -> None:
    """Let the garbage collector look less often: imports make objects that stay, and a burst of
    events makes tens of thousands of short-lived objects, hardly any of them in a cycle.
    """
    gc.set_threshold(GC_YOUNG_OBJECTS, 10, 10)
