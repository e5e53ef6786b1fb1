"""``Warning`` headers (RFC 7234 section 5.5 as Kubernetes uses it; KEP-1693)."""

from __future__ import annotations

from sliceplane.shell.server.requests.response import Header

TOTAL_CHARACTERS_MAX = 4096
SHORTENED_CHARACTERS = 256
#: Python's HTTP client gives up at 100 response headers in all
WARNINGS_MAX = 80

#: group, version and plural to the text
_DEPRECATIONS = {
    ("", "v1", "endpoints"): "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
    ("discovery.k8s.io", "v1beta1", "endpointslices"): (
        "discovery.k8s.io/v1beta1 EndpointSlice is deprecated in v1.21+, unavailable in v1.25+; "
        "use discovery.k8s.io/v1 EndpointSlice"
    ),
}


def warning_headers(texts: tuple[str, ...]) -> tuple[Header, ...]:
    """One header for each text; together they stay within what clients can take."""
    unique = list(dict.fromkeys(texts))
    if sum(map(len, unique)) > TOTAL_CHARACTERS_MAX:
        unique = [text[:SHORTENED_CHARACTERS] for text in unique]
    headers: list[Header] = []
    left = TOTAL_CHARACTERS_MAX
    for text in unique[:WARNINGS_MAX]:
        left -= len(text)
        if left < 0:
            break
        headers.append((b"warning", f'299 - "{_quoted(text)}"'.encode()))
    return tuple(headers)


def _quoted(text: str) -> str:
    """The inside of an RFC 7230 quoted-string; control characters cannot be in a header."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(character if character.isprintable() else " " for character in escaped)


def deprecation(group: str, version: str, plural: str) -> tuple[str, ...]:
    """What every request for a deprecated resource is told, also if it fails."""
    text = _DEPRECATIONS.get((group, version, plural))
    return (text,) if text else ()
