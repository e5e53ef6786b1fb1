"""How the help of a command is laid out: examples, the options that matter first, the others under
headings.

``GROUPS`` says which options stand under which heading, by the names of their parameters and for
all commands. What matches none stands first, under "Options": that is for what most people need, so
a new option is either that or belongs to a group. ``Command`` and ``CommandGroup`` differ from
click's classes in nothing else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

FIRST = "Options"
#: heading -> patterns of parameter names, in the order of the help; the first match counts
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Cluster", ("kubeconfig", "context", "request_timeout", "master", "kube_api_*")),
    ("Addresses", ("advertise_address", "service_cluster_ip_range")),
    ("Emulated workloads", ("emulate_*", "zones")),
    ("Comparing without writing", ("shadow*",)),
    (
        "Zone",
        (
            "cluster_domain",
            "ttl_s",
            "pods",
            "namespaces",
            "reverse_cidrs",
            "zone_answers",
            "client_zones",
        ),
    ),
    ("Clients", ("allow", "shared_resolvers", "rate_limit")),
    ("Names of others", ("forward*", "stubs", "hosts", "serve_stale")),
    (
        "Node",
        (
            "hostname_override",
            "register_node",
            "netns",
            "proxy_config",
            "progress_lease",
            "drain_port",
        ),
    ),
    (
        "Local traffic and masquerading",
        ("cluster_cidr", "detect_local_mode", "pod_*", "masquerade_all", "nodeport_addresses"),
    ),
    ("Tracked connections", ("conntrack_*",)),
    ("Health pages and metrics", ("healthz_*", "metrics_*", "xds_pages")),
    (
        "Writing rules",
        ("sync_period", "min_sync_period", "bind_address_hard_fail", "init_only", "oom_score_adj"),
    ),
    (
        "EndpointSlices",
        (
            "max_endpoints_per_slice",
            "concurrent_service_*",
            "endpointslice_updates_*",
            "subsetting",
            "hold_mass_*",
            "defragment*",
            "claim_*",
            "selector_changes",
            "traffic_distribution_conditions",
            "topology_storage",
        ),
    ),
    (
        "Endpoints and their mirror",
        ("concurrent_endpoint_*", "endpoint_updates_*", "mirroring_*", "reverse_mirror"),
    ),
    ("Leader election", ("leader_elect*",)),
    ("Storage in etcd", ("etcd_*",)),
    (
        "Credentials",
        (
            "token_auth_file",
            "client_ca_file",
            "requestheader_*",
            "proxy_client_*",
            "anonymous_auth",
            "service_account_*",
            "api_audiences",
        ),
    ),
    ("Log", ("log_*", "no_color")),
    ("Audit log", ("audit_log_*",)),
    ("Flight recorder", ("recorder_*", "recordings")),
    ("Processes", ("readers",)),
    ("Limits", ("max_*", "history_keep", "shutdown_*")),
    (
        "Versions and features",
        (
            "runtime_config",
            "feature_gates",
            "emulated_version",
            "enable_admission_*",
            "disable_admission_*",
        ),
    ),
)


def heading(parameter: str) -> str:
    """The title under which the help has the option with this parameter name."""
    return next(
        (title for title, names in GROUPS if any(fnmatchcase(parameter, name) for name in names)),
        FIRST,
    )


#: columns before the help of an option; one that is longer has a line of its own
_NAMES_WIDTH = 32
#: click's words for kinds of values, and what a user types
_PLAIN = (
    ("INTEGER RANGE", "N"),
    ("INTEGER", "N"),
    ("FLOAT", "N"),
    ("BOOLEAN", "true|false"),
    ("[default: True", "[default: true"),
    ("[default: False", "[default: false"),
)


def _definitions(rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Lines of at most *width* columns, as click's; but no word is broken, since users copy flags
    and URLs.
    """
    for names, text in rows:
        for word, plain in _PLAIN:
            names = names.replace(word, plain)
            text = text.replace(word, plain)
        lines = textwrap.wrap(
            text, max(width - _NAMES_WIDTH, 20), break_long_words=False, break_on_hyphens=False
        )
        if len(names) > _NAMES_WIDTH - 2:
            yield names
        else:
            yield f"{names:{_NAMES_WIDTH}}{lines.pop(0) if lines else ''}".rstrip()
        yield from (f"{'':{_NAMES_WIDTH}}{line}" for line in lines)


class _Laid(click.Command):
    """A command; *examples*: command lines that work as they stand, each with what it is for."""

    def __init__(
        self, *arguments: Any, examples: Sequence[tuple[str, str]] = (), **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # click looks for a similar spelling alone: --nodes is the end of --emulate-nodes.
            typed = error.option_name.lstrip("-")
            names = [
                name
                for parameter in self.params
                for name in parameter.opts
                if name.startswith("--")
            ]
            near = [
                name
                for name in names
                if len(typed) > 1 and (typed in name or name.lstrip("-") in typed)
            ]
            raise click.NoSuchOption(
                error.option_name, possibilities=sorted(near) or error.possibilities, ctx=ctx
            ) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for what, line in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}# {what}\n")
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        sections: dict[str, list[tuple[str, str]]] = {
            title: [] for title in (FIRST, *(title for title, _ in GROUPS))
        }
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if row is not None:
                sections[heading(parameter.name or "")].append(row)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    for line in _definitions(rows, formatter.width - formatter.current_indent):
                        formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Command(_Laid):
    """A command."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            from sliceplane.cli.cluster import end_confused

            end_confused(error, ctx)
            raise


class CommandGroup(_Laid, click.Group):
    """A command that has others below it."""

    command_class = Command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)
