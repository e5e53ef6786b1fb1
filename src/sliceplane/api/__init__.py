"""The objects of the API and what is true of them wherever they are.

Two views of one object, on purpose.  The server keeps *documents*: JSON dictionaries with every
field the client sent, known to us or not.  Readers keep *projections*: frozen ``msgspec`` structs
with just the fields that they use, decoded straight from the stored bytes.

Promises: the resource table (``scheme``) and that of subresources, projections, requests, rules of
Services, selectors, gates and Status errors, worded as Kubernetes words them.
Never: keeps state between calls, performs I/O, knows a store or a server.
"""
