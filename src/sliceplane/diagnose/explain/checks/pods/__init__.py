"""Checks of the Pods of a Service: which it selects, what makes them, why they are no endpoints, and
how they come and go.
"""
