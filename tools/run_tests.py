"""``make test``: all tests in several processes, and a second look at the few that failed.

Ten thousand tests that share two cores with whatever else runs there fail by chance now and then: one in a million
each is one whole run in a hundred.  So what failed is run once more, alone, when all others are done.  What fails
again fails the run, and so do more failures than chance explains (``SECOND_LOOKS``).  What passes then is named in the
last lines, beside its first failure above: it is still a fault, of the test or of what it tests, and somebody's next
work.

``--once`` takes no second look: for runs that shall prove that nothing fails by chance.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

#: more failures than these are no chance
SECOND_LOOKS: Final = 3
_TESTS_FAILED: Final = 1


def main(arguments: list[str]) -> int:
    """The exit code of pytest's last word; *arguments* but ``--once`` are pytest's."""
    once = "--once" in arguments
    first_arguments = [argument for argument in arguments if argument != "--once"]
    with tempfile.TemporaryDirectory(prefix="sliceplane-tests-") as cache:
        first = _pytest(cache, *first_arguments)
        if first != _TESTS_FAILED or once:
            return first
        failed = _failed(Path(cache))
        if not 0 < len(failed) <= SECOND_LOOKS:
            return first
        print(f"\n{len(failed)} failed beside the others. Each once more, alone:", flush=True)
        second = _pytest(cache, *failed)
    if second == 0:
        print("\nPASSED, BUT FAILED ONCE BEFORE (see above). Find out why, then mend the test or the code:")
        print("".join(f"  {test}\n" for test in failed), end="", flush=True)
    return second


def _pytest(cache: str, *arguments: str) -> int:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments], check=False
    ).returncode


def _failed(cache: Path) -> list[str]:
    """What the last run under *cache* saw fail, in any of its phases, sorted."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
