"""Authentication: service account tokens, reviews of tokens, and impersonation.

Promises: a token is valid exactly as long as its account and its bound object exist with the uids
in the token. No user impersonates another without a rule that allows it. Never: computes or
verifies a signature; the owner of the key does (``types.TokenService``).

- ``token_request``: POST serviceaccounts/NAME/token.
- ``bearer``: from a token to a user.
- ``impersonation``: from ``Impersonate-...`` headers to a user.
"""
