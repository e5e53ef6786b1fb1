"""Slices for Endpoints that somebody else makes (KEP-0752, "EndpointSliceMirroring Controller").

``desired`` says which slices an Endpoints object is, ``ledger`` what is known of those that exist, ``service`` plans
the difference, ``engine`` routes changes to services.
"""
