"""The part that every consumer of EndpointSlices shares: merged and usable endpoints, progress reports, drains."""
