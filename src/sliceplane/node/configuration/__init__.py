"""A node proxy's configuration: ``KubeProxyConfiguration`` (kubeproxy.config.k8s.io/v1alpha1) and
flags, one model.

``fields`` is the list of all fields: kind, default, and why those without an effect here have none.
``reading`` makes of a file's bytes which fields it gives, and where; flags give fields as well.
``validation`` says what is wrong with what is given, ``settings`` what it amounts to, ``sysctls``
what the kernel's connection tracking is to be told.

Nothing is passed over in silence: a field that is unknown, or that asks for what cannot be done, is
an error that names it; one that cannot do harm or good here is told of.
"""
