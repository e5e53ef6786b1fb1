"""Authentication: service account tokens, reviews of tokens, and acting as another user.

Promises: a token is worth something exactly as long as the account that it is for, and the object
that it is bound to, exist with the uid that it names; no user acts as another without a rule that
says so. Never: computes or verifies a signature. The holder of the key does that
(``types.TokenService``).

- ``token_request``: POST serviceaccounts/NAME/token.
- ``bearer``: from a token to a user.
- ``impersonation``: from ``Impersonate-...`` headers to a user.
"""
