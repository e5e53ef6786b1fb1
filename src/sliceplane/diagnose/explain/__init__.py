"""Explains why a Service does not reach its Pods: the chain from a name to an endpoint.

``question`` holds what a person asks, and the answer; ``investigation`` names what to read, takes
it, and answers; ``facts`` holds what was read, ``objects`` the members that checks use. ``case`` is
one Service with all that concerns it; ``chain`` has the links in order, ``checks`` the checks of
each; ``writers`` finds who wrote the field that shows a fault, ``api.findings.wording`` has phrases
that sentences share. ``text`` prints. It reads nothing itself: ``diagnose.io.explaining`` does.

``status`` is one screen about a cluster: ``status_parts`` decides (``scrape`` reads metrics for
it), ``text`` prints.
"""
