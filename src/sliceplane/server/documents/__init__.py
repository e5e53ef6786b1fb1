"""Objects as documents (decoded JSON), as far as only a server handles them.

Types, strict decoding, protobuf, patches, owners of fields, versions, tables, OpenAPI. Readers of
objects need none of it: they have ``api``.
"""
