"""Every double-backquoted name in docstrings and comments of ``src`` resolves (``tests.code_names``
says how).
"""

from __future__ import annotations

import pytest
from tests.code_names import REFERENCE, Code, dangling, names_of_others, sliceplane


def test_every_name_in_docstrings_and_comments_resolves() -> None:
    code = sliceplane()
    problems = [
        f"{path or 'sliceplane'}: ``{name}``"
        for path in code.texts
        for name in dangling(code, path)
    ]
    assert problems == [], "\n".join(problems)


def testnames_of_others_are_used() -> None:
    used = {
        match["name"] for text in sliceplane().texts.values() for match in REFERENCE.finditer(text)
    }
    assert names_of_others() <= used, sorted(names_of_others() - used)


HOUSE = Code(
    {
        "": "",
        "room": '"""``door`` opens it, ``window`` is gone."""\n',
        "room.door": "import asyncio\nclass Plain:\n    def open(self): self.width = 1\n"
        "class Door(Plain):\n    lock: str\n",
    },
    '{"resourceVersion": 1}',
)


@pytest.mark.parametrize(
    ("name", "resolves"),
    [
        ("room.door", True),
        ("sliceplane.room.door.Door.lock", True),
        ("door.Door", True),
        ("Door.open", True),
        ("Door.width", True),
        ("asyncio.run", True),
        ("resourceVersion", True),
        ("NAME.room", True),
        ("room.window", False),
        ("window.Door", False),
        ("Door.close", False),
        ("Window", False),
        ("generateName", False),
    ],
)
def test_a_reference_resolves_where_there_is_such_a_name(name: str, resolves: bool) -> None:
    assert HOUSE.resolves(name) is resolves


def test_a_module_that_is_gone_from_a_package_is_seen() -> None:
    assert dangling(HOUSE, "room") == ["window"]
