"""The verbs of the API: one module for each, and what all writes end with.

``create``, ``update`` (PUT and PATCH), ``apply``, ``delete`` and ``read`` are the verbs;
``subresources`` and ``eviction`` serve what is no object of its own. ``answers`` stages a write and
shapes its answer, ``managed_fields`` keeps the owners of fields, ``options`` checks parameters.
"""
