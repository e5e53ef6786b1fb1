"""A real plane for the tests of programs that use Services: started in 0.1 s, gone at the end,
faults on request.

    with Plane(nodes=2) as plane:
        plane.apply(Path("web.yaml"))
        plane.wait_for(lambda: len(plane.endpoints("web")) == 3)

Promises: it is the server and the controllers of ``sliceplane up``, over TLS on a free port, in a
thread of its own, so that what is tested may block or be a coroutine; any number live side by side;
nothing outlives the ``with`` block. Names in ``__all__`` and the fixtures of
``sliceplane.pytest_plugin`` stay. Never: imported by another package of ours. Importing it needs no
extra, starting a plane needs ``server``.

See ``docs/testing.md``.
"""

from __future__ import annotations

from sliceplane.lab.testing.faults import Fault, Faults
from sliceplane.lab.testing.heuristics import check_heuristic
from sliceplane.lab.testing.plane import Plane

__all__ = ["Fault", "Faults", "Plane", "check_heuristic"]


def __dir__() -> list[str]:
    return __all__


if __name__ == "__main__":
    from sliceplane.lab.testing.command import main

    main(prog_name="python -m sliceplane.testing")
