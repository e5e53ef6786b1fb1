"""What only a server does with objects as documents (decoded JSON).

Types, strict decoding, protobuf, patches, owners of fields, versions, tables, OpenAPI. Readers of
objects need none of it: they have ``api``.
"""
