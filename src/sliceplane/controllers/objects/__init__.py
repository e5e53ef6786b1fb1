"""Controllers of the life cycle of all objects: owners and dependents, Namespaces, quotas, orphaned
Pods.
"""
