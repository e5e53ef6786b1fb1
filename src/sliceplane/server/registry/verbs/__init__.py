"""The verbs of the API, one module for each, and the common end of all writes.

``create``, ``update`` (PUT and PATCH), ``apply``, ``delete`` and ``read`` are the verbs;
``subresources`` and ``eviction`` serve subresources. ``answers`` stages a write and builds its
answer, ``managed_fields`` records the owners of fields, ``options`` checks parameters.
"""
