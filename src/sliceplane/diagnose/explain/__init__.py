"""Why a Service does not reach its Pods: the chain from a name to an endpoint, walked link by link.

``question`` is what a person asks, and the answer; ``investigation`` says what to read, takes it,
and answers; ``facts`` holds what was read, ``objects`` the members of it that count. ``case`` is
one Service with all that concerns it; ``chain`` has the links in order, ``checks`` what each of
them looks at; ``writers`` finds who wrote the field that shows a fault, ``api.findings.wording``
has words that sentences share. ``text`` prints. Reads nothing itself: ``diagnose.io.explaining``
does.

``status`` has what one screen says of a cluster: ``status_parts`` decides (``scrape`` reads metrics
for it), ``text`` prints.
"""
