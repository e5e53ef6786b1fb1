"""The promises that a simulation checks: at quiet points (``invariants``), and at every commit."""
