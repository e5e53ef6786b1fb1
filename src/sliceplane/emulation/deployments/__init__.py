"""Emulated Deployments: the ``controller``, its next step, arithmetic, documents and status."""
