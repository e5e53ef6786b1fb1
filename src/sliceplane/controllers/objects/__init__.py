"""Controllers of the life of all objects: owners and dependents, namespaces, quotas, orphaned
Pods.
"""
