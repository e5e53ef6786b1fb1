"""The entry point: the click group and its commands."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sliceplane", prog_name="sliceplane")
def main() -> None:
    """A Kubernetes-compatible service-discovery plane: EndpointSlices from API to kernel."""
