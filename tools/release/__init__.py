"""A release: everything that a version has, built from what is committed, tried, and listed with
digests.

    PYTHONPATH=src:. python -m tools.release              # all parts, in dist/
    PYTHONPATH=src:. python -m tools.release agent chart  # some

| part | files |
|---|---|
| packages | wheel and sdist |
| agent | ``sliceplane-agent.pyz``: the agent in one file, for Python 3.11 or newer without packages |
| chart | the Helm chart, as a file and as an archive of an OCI image layout |
| images | the image for amd64 and arm64, an archive of an OCI image layout, with SBOM and provenance |

Beside them: an SBOM for the agent and each image (CycloneDX 1.6), provenance (SLSA 1.0 in an
in-toto statement), the version's CHANGELOG entry, and ``SHA256SUMS``. ``preflight`` reports every
reason to refuse before anything is built. Every part but the images is built twice, elsewhere, and
must be the same bytes; each is installed where nothing else is, and runs; ``checking`` validates
the SBOMs and writes the checksums last.
"""
