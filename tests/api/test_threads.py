"""Programs read projections in several threads: a view each, say (``client.SyncEndpointView``)."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_READ: Final = """
import sys, threading
from sliceplane.api.codec import decode
from sliceplane.api.scheme import RESOURCES

sys.setswitchinterval(1e-6)
body = (b'{"metadata":{"name":"a","ownerReferences":[{"uid":"x"}]},"endpoints":[{"addresses":["10.0.0.1"]}],'
        b'"spec":{"containers":[{"ports":[{"containerPort":8}]}]},"status":{"conditions":[{"type":"Ready"}]}}')
for projection in dict.fromkeys(resource.projection for resource in RESOURCES):
    begin = threading.Barrier(8)

    def read():
        begin.wait()
        assert decode(body, projection).metadata.name == "a"

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("read")
"""


def test_the_first_look_at_a_projection_may_be_in_several_threads() -> None:
    """Two threads that made the first decoder of a type at once ended the process with SIGSEGV."""
    done = subprocess.run(
        [sys.executable, "-c", _READ], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr
