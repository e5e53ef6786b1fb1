"""The checks of each link of the chain: pure functions of a case, one module for each part of the
catalogue; those about Pods are in ``pods``.

A check yields a finding for each fault that it sees, with names and numbers in the sentence and the
field in the evidence; it is silent where it could not see. ``CHECKS`` of a module are in the order
of the catalogue, ``wants`` names what to read. Two sources judge for other commands as well:
``drift.reports`` what consumers report, ``audit.judge`` Endpoints beside slices.
"""
