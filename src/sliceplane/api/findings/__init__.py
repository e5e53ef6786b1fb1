"""Findings: what is wrong, as every part of Sliceplane says it.

``codes`` has the catalogue (``codes.toml``): a stable code for each cause, its title, how bad it
is, what to do. ``finding`` is one occurrence: a sentence with names and numbers, the fields that
show it, what follows, and a command. ``text`` prints findings for people. The rooms of ``diagnose``
find them.
"""
