"""Checks of the Pods of a Service: which it selects, what creates them, why they are no endpoints,
and how they come and go.
"""
