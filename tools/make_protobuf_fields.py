"""Make ``src/sliceplane/documents/protobuf/fields.txt`` from a table of facts about Kubernetes' protobuf messages.

    python tools/make_protobuf_fields.py FACTS.tsv > src/sliceplane/documents/protobuf/fields.txt

FACTS.tsv has a header line and one field a line, in these columns:

package   proto package, e.g. ``k8s.io.api.core.v1``
message   name within the package
field     name in the .proto file
number    field number
label     optional | repeated | map
type      string | bool | int32 | int64 | bytes | MESSAGE | PACKAGE.MESSAGE | map<string,TYPE>
json      name in JSON, ``-`` for none
presence  pointer: absent and zero differ, and neither wire nor JSON has an absent one;
          always: a plain value, in JSON even when it is zero;
          omit: a plain value (or a list or a map), left out of JSON when it is zero;
          inline: a message whose members are members of the parent in JSON
kind      ``kind`` if the message is a kind of the API, else ``message``

Names, numbers and types are those of the ``generated.proto`` files; presence follows from whether the
Go field is a pointer and whether its JSON tag says omitempty.

The output has a line ``kind|message PACKAGE NAME`` for each message, followed by its fields in the order
of their numbers: ``NUMBER JSON TYPE PRESENCE``, with ``[]`` before the type of a repeated field and ``{}``
before the value type of a map.  A type of the same package is written without the package.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path


def type_text(label: str, kind: str) -> str:
    if label == "map":
        assert kind.startswith("map<string,"), f"not a map from strings: {kind}"
        return "{}" + kind[len("map<string,") : -1].lstrip(".")
    return f"[]{kind}" if label == "repeated" else kind


def main(path: str) -> None:
    messages: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    with Path(path).open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            key = (row["package"], row["message"], row["kind"])
            text = f"{row['json']} {type_text(row['label'], row['type'])} {row['presence']}"
            messages.setdefault(key, []).append((int(row["number"]), text))
    for (package, name, kind), fields in sorted(messages.items()):
        print(kind, package, name)
        for number, text in sorted(fields):
            print(number, text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
