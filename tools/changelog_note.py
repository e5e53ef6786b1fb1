"""Says so when sources changed and ``CHANGELOG.md`` did not: in the working tree, or in commits
since its last change.

A note, not a failure: a change that no user sees needs no line.
"""

from __future__ import annotations

import subprocess
import sys

#: files that a note names
_NAMED = 3


def git(*arguments: str) -> list[str]:
    """Returns the lines that git prints; none outside of a checkout."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def main() -> None:
    since = git("log", "-1", "--format=%H", "--", "CHANGELOG.md")
    if not since or git("status", "--porcelain", "--", "CHANGELOG.md"):
        return
    changed = git("diff", "--name-only", since[0], "--", "src") + git(
        "ls-files", "--others", "--exclude-standard", "src"
    )
    if changed:
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        print(
            f"note: CHANGELOG.md is older than changes of {', '.join(changed[:_NAMED])}{more}: "
            "a change that users see needs a line",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
