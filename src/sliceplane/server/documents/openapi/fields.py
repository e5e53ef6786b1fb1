"""Facts and texts about fields that only OpenAPI tells: enumerations, defaults, descriptions.

``fields.tsv`` has a section for each definition (see ``api.schema``), after a blank line; a row has
four columns, without empty ones at its end:

    ==========  ======================================================================================
    definition  in the first row of a section; that row is about the definition as a whole
    field       its name in JSON
    facts       members of the field's schema as JSON: ``default``, ``enum``; those of elements below
                ``items`` or ``additionalProperties``
    text        the description
    ==========  ======================================================================================

The section ``*`` has the texts of fields that mean the same wherever they occur.
``tools/make_openapi_fields.py`` writes the facts; the texts are written by hand. The file is read
when a document is first asked for, and a section is parsed when its definition is.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import Final, NamedTuple

SHARED: Final = "*"
#: definitions of a version that is made of another (``api.schema``)
_OLD: Final = ("discoveryV1beta1.", "discovery.")


class FieldRow(NamedTuple):
    """One field, or with the name "" the definition."""

    facts: str
    text: str


@cache
def sections() -> dict[str, str]:
    """The rows of each definition, unparsed."""
    raw = pkgutil.get_data(__package__, "fields.tsv")
    assert raw is not None, "fields.tsv is not in the package"
    return {section.split(maxsplit=1)[0]: section for section in raw.decode().split("\n\n")}


def rows_of(definition: str) -> dict[str, FieldRow]:
    """The rows of *definition* by field, empty if it has none."""
    rows = (
        f"{line}\t\t\t".split("\t")
        for line in sections().get(definition.replace(*_OLD), "").splitlines()
    )
    return {field: FieldRow(facts, text) for _, field, facts, text, *_ in rows}
