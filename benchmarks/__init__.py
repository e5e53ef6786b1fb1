"""Budgets, measured: ``python -m benchmarks`` runs all, ``python -m benchmarks.NAME`` one.

Each prints a table for people and exits with 1 when a budget is missed; all together name at the
end what was missed. With ``--json`` it prints one object a line: name, size, value, unit, peer,
peer_value, ratio, budget, met. ``--small`` runs everything at its smallest size, to see that it
runs: no budget applies. What could not be measured here, and why, is said on standard error. A
budget is never a timed test: machines differ, and tests must not.

Peers' figures that say "(recorded)" were measured once, on the machine of the budgets.
"""
