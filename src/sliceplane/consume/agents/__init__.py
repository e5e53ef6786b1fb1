"""Registrations and grants of agents: endpoints that live outside Kubernetes."""
