"""Authorization: role-based access control as Kubernetes has it.

Promises: a decision costs one pass over the rules of the user's own bindings, however many roles
and bindings others have. Decisions follow the newest staged objects, so a revoked role does not
apply to the next request. The same objects give the same reasons, in upstream's words. Never:
authenticates, reads a request, or knows where roles are stored.

- ``rules``: one compiled rule, and the actions that it allows.
- ``coverage``: comparison of granted rules with the rules of the user who grants them.
- ``index``: roles and bindings by subject, derived from stored objects; decisions.
- ``aggregation``: ClusterRoles that gather the rules of others.
- ``escalation``: the check that a user grants only rights that they have.
- ``policy``: the roles and bindings of every cluster (written by ``server.registry.bootstrap``).
- ``reviews``: the kinds that answer "may I?" and "who am I?".
- ``dependencies``, ``open_watches``: open watches, which are authorized again when their permission
  may have changed.
"""
