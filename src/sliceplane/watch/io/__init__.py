"""Clients of an API server behind one seam, and what stands on them: informers, Events,
credentials, kubeconfigs.
"""
