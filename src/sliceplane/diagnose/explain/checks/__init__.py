"""The checks of each link of the chain: pure functions of a case, one module for each part of the
catalogue; those about Pods are in ``pods``.

A check yields a finding for each fault that it detects, with names and numbers in the sentence and
the field in the evidence; it yields nothing about unread objects. ``CHECKS`` of a module are in the
order of the catalogue, ``reads`` lists their reads. Two modules judge for other commands as well:
``drift.reports`` the reports of consumers, ``audit.judge`` Endpoints and slices.
"""
