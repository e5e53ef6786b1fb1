"""What the ``sliceplane`` program calls first: an installation may be a client only.

``pip install sliceplane`` brings the Python client; the commands need an extra.  Who runs the program without it is
told which, instead of being shown a traceback.  Nothing but the standard library may be imported at module level here.
"""

from __future__ import annotations

import sys

#: modules that only the extras install, and the extra to name to whoever lacks one
EXTRA_OF = {
    "click": "server",
    "cryptography": "server",
    "httptools": "server",
    "jsonpatch": "server",
    "prometheus_client": "server",
    "structlog": "server",
    "uvicorn": "server",
    "uvloop": "server",
    "matplotlib": "plot",
}


def main() -> None:
    """The command line; exits with 1 and a sentence where an extra is missing."""
    try:
        from sliceplane.cli.main import main as command

        command()
    except ModuleNotFoundError as error:
        extra = EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        wanted = "proxy" if extra == "server" and sys.argv[1:2] == ["proxy"] else extra
        sys.exit(
            f"sliceplane: {error.name} is not installed, only the Python client is. "
            f"Run: pip install 'sliceplane[{wanted}]'"
        )
