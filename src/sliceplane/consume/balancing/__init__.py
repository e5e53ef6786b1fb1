"""The endpoints of one Service as a client sees them, and which of them gets the next request.

Promises: the endpoints are exactly what the slices say, each Pod and each address once; a pick is
always one that may be used from here, as the node proxy would decide; one changed endpoint costs
work for its slice, never for the Service. Never: opens a connection, looks at a clock, or draws a
number that was not given to it.
"""
