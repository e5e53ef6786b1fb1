"""Bootstrap documents with which clients connect to us: for Envoy, and for every gRPC library (gRFC
A27, A65, A97).

They are minimal: omitted fields have harmless defaults.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

import msgspec

from sliceplane.api.meta import Document

#: name of the cluster through which Envoy reaches us; no Service can have it
CLUSTER: Final = "sliceplane-xds"
_TYPES: Final = "type.googleapis.com/envoy.extensions"


class BootstrapOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a document.  Paths are those of the client's machine; "" if there is none."""

    host: str
    port: int
    #: without TLS, for a server on the same machine
    insecure: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    token_file: str = ""
    node_id: str = "client"
    cluster: str = "sliceplane"
    zone: str = ""
    #: ``node_name``, ``namespace``, ``listeners``, ``namespaces``
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    admin_port: int = 0
    #: Envoy reports its requests, the demand of Services with measured zones
    load_reports: bool = False


def _node(options: BootstrapOptions) -> Document:
    node: Document = {"id": options.node_id, "cluster": options.cluster}
    if options.zone:
        node["locality"] = {"zone": options.zone}
    if options.metadata:
        node["metadata"] = dict(options.metadata)
    return node


def grpc_bootstrap(options: BootstrapOptions) -> Document:
    """Returns the document for a file that ``GRPC_XDS_BOOTSTRAP`` names."""
    credentials: Document = {"type": "insecure"}
    if not options.insecure:
        files = (
            ("ca_certificate_file", options.ca_file),
            ("certificate_file", options.cert_file),
            ("private_key_file", options.key_file),
        )
        config = {name: path for name, path in files if path}
        credentials = {"type": "tls", "config": {**config, "refresh_interval": "600s"}}
    host = f"[{options.host}]" if ":" in options.host else options.host
    server: Document = {
        "server_uri": f"{host}:{options.port}",
        "channel_creds": [credentials],
        "server_features": ["xds_v3"],
    }
    if options.token_file:
        server["call_creds"] = [
            {"type": "jwt_token_file", "config": {"jwt_token_file": options.token_file}}
        ]
    # gRPC for Node refuses a node without a locality, even an empty one.
    return {
        "xds_servers": [server],
        "node": {**_node(options), "locality": {"zone": options.zone} if options.zone else {}},
    }


def envoy_bootstrap(options: BootstrapOptions) -> Document:
    """Returns the document for ``envoy -c``."""
    source: Document = {"resource_api_version": "V3", "ads": {}}
    ads = {
        "api_type": "DELTA_GRPC",
        "transport_api_version": "V3",
        "set_node_on_first_message_only": True,
        "grpc_services": [{"envoy_grpc": {"cluster_name": CLUSTER}}],
    }
    document: Document = {
        "node": _node(options),
        "dynamic_resources": {
            "ads_config": ads,
            "cds_config": source,
            "lds_config": {**source, "ads": {}},
        },
        "static_resources": {"clusters": [_cluster(options)]},
    }
    if options.token_file:
        folder = options.token_file.rpartition("/")[0] or "/"
        secret = {"filename": options.token_file, "watched_directory": {"path": folder}}
        document["static_resources"]["secrets"] = [
            {"name": "token", "generic_secret": {"secret": secret}}
        ]
    if options.load_reports:
        document["cluster_manager"] = {
            "load_stats_config": {
                "api_type": "GRPC",
                "transport_api_version": "V3",
                "grpc_services": [{"envoy_grpc": {"cluster_name": CLUSTER}}],
            }
        }
    if options.admin_port:
        document["admin"] = {"address": _address("127.0.0.1", options.admin_port)}
    return document


def _cluster(options: BootstrapOptions) -> Document:
    protocol: Document = {
        "@type": f"{_TYPES}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {
            "http2_protocol_options": {"connection_keepalive": {"interval": "30s", "timeout": "5s"}}
        },
    }
    if options.token_file:
        protocol["http_filters"] = _token_filters()
    endpoint = {"endpoint": {"address": _address(options.host, options.port)}}
    cluster: Document = {
        "name": CLUSTER,
        "type": "STATIC" if _is_address(options.host) else "STRICT_DNS",
        "connect_timeout": "5s",
        "load_assignment": {"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": [endpoint]}]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": protocol
        },
    }
    if not _is_address(options.host):
        cluster["dns_lookup_family"] = (
            "ALL"  # by default Envoy ignores IPv4 addresses if there is an IPv6 one
        )
    if not options.insecure:
        cluster["transport_socket"] = _tls(options)
    return cluster


def _tls(options: BootstrapOptions) -> Document:
    kind = "IP_ADDRESS" if _is_address(options.host) else "DNS"
    names = [{"san_type": kind, "matcher": {"exact": options.host}}]
    common: Document = {
        "validation_context": {
            "trusted_ca": {"filename": options.ca_file},
            "match_typed_subject_alt_names": names,
        }
    }
    if options.cert_file:
        chain, key = {"filename": options.cert_file}, {"filename": options.key_file}
        common["tls_certificates"] = [{"certificate_chain": chain, "private_key": key}]
    config: Document = {
        "@type": f"{_TYPES}.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": common,
    }
    if kind == "DNS":
        config["sni"] = options.host
    return {"name": "envoy.transport_sockets.tls", "typed_config": config}


def _token_filters() -> list[Document]:
    """Returns the filters that send a ServiceAccount's token, which Envoy reads again when it is
    renewed.
    """
    generic = {
        "@type": f"{_TYPES}.http.injected_credentials.generic.v3.Generic",
        "credential": {"name": "token"},
        "header_value_prefix": "Bearer ",
    }
    injector = {
        "@type": f"{_TYPES}.filters.http.credential_injector.v3.CredentialInjector",
        "overwrite": True,
        "credential": {"name": "envoy.http.injected_credentials.generic", "typed_config": generic},
    }
    codec = {"@type": f"{_TYPES}.filters.http.upstream_codec.v3.UpstreamCodec"}
    return [
        {"name": "envoy.filters.http.credential_injector", "typed_config": injector},
        {"name": "envoy.filters.http.upstream_codec", "typed_config": codec},
    ]


def _address(host: str, port: int) -> Document:
    return {"socket_address": {"address": host, "port_value": port}}


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
