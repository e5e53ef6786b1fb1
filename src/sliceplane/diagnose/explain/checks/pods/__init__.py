"""Checks of the Pods of a Service: its selection, their workloads, the reasons why they are no
endpoints, their rollouts.
"""
