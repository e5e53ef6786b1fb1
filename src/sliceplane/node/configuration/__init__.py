"""A node proxy's configuration: ``KubeProxyConfiguration`` (kubeproxy.config.k8s.io/v1alpha1) and
flags, one model.

``fields`` is the list of all fields: kind, default, and the reason of those without effect here.
``parsing`` reads the fields that a file sets, with their lines; flags set fields as well.
``validation`` returns the errors in these fields, ``settings`` the effective settings, ``sysctls``
those of the kernel's connection tracking.

Nothing is ignored silently: an unknown field, or one that requests an unsupported feature, is an
error that names it; a field without effect here results in a note.
"""
