"""Slices for Endpoints that another writer makes (KEP-0752, "EndpointSliceMirroring Controller").

``desired`` says which slices an Endpoints object is, ``packing`` which of them holds what,
``service`` plans the difference to those that exist, ``engine`` routes changes to services.
"""
