"""Authorization: role-based access control as Kubernetes has it.

Promises: a decision about one request costs one pass over the rules that its user's bindings lead
to, however many roles and bindings others have; decisions follow the newest staged objects, so a
role that was taken away is gone for the next request; the same objects give the same reasons, in
the same words as upstream. Never: authenticates, reads a request, or knows where roles are stored.

- ``rules``: one rule, compiled: does it allow this, does it cover that rule.
- ``index``: roles and bindings by subject, kept up to date from stored objects; decisions.
- ``escalation``: no user hands out more than they have.
- ``policy``: the roles and bindings that every cluster has (``server.registry.bootstrap`` makes
  them).
- ``reviews``: the kinds that ask "may I?" and "who am I?".
"""
