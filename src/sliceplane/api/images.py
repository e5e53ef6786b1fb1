"""Names of container images (the grammar of github.com/distribution/reference), as far as
Kubernetes reads them.
"""

from __future__ import annotations

import re
from typing import Final

_PART: Final = "[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME: Final = re.compile(
    rf"(?:[-.:a-zA-Z0-9\[\]]+/)?{_PART}(?:/{_PART})*(?::\w[\w.-]{{0,127}})?(?:@[a-z0-9+._-]+:[0-9a-fA-F]{{32,}})?",
    re.ASCII,
)
CHARACTERS_MAX: Final = 512
#: RFC 6761, section 6.4: there is no host of that name
_NOWHERE: Final = "invalid"


def is_image(text: str) -> bool:
    return len(text) <= CHARACTERS_MAX and _NAME.fullmatch(text) is not None


def pull_policy(image: str) -> str:
    """The default: ``Always`` for ``latest`` and for no tag at all, unless a digest pins the
    image.
    """
    if "@" in image or not is_image(image):
        return "IfNotPresent"
    _, _, tag = image.rpartition("/")[2].partition(":")
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def is_nowhere(image: str) -> bool:
    """Returns True if the registry's host name cannot exist."""
    host, slash, _ = image.partition("/")
    labels = host.partition(":")[0].lower().split(".")
    return bool(slash) and len(labels) > 1 and _NOWHERE in (labels[0], labels[-1])
