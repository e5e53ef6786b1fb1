"""Pods, their templates, and the kinds that say how Pods run and when they may be removed."""
