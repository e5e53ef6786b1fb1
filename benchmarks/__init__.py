"""Budgets, measured: ``python -m benchmarks`` runs all, ``python -m benchmarks.NAME`` one.

Each prints a table for people; with ``--json`` one object a line: name, size, value, unit, peer,
peer_value, ratio, budget, met.  A budget is never a timed test: machines differ, and tests must not.
"""
