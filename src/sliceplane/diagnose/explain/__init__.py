"""Explains why a Service does not reach its Pods: the chain from a name to an endpoint.

``question`` has the query and the answer; ``investigation`` requests reads, takes their results,
and answers; ``facts`` has the objects that were read, ``objects`` the members that checks use.
``case`` is one Service with all that concerns it; ``chain`` has the links in order, ``checks`` the
checks of each; ``writers`` finds the last writer of a faulty field, ``api.findings.wording`` has
phrases that sentences share. ``summary`` describes the object in a sentence, ``text`` prints.
``diagnose.io.explaining`` does the I/O.

``status`` is one screen about a cluster: ``status_parts`` decides (``scrape`` reads metrics for
it), ``text`` prints.
"""
