"""Slices for Endpoints of other writers (KEP-0752, "EndpointSliceMirroring Controller").

``desired`` converts an Endpoints object into the slices that must exist, ``packing`` distributes
endpoints over slices, ``service`` plans the difference to the existing slices, and ``engine``
routes changes to Services.
"""
