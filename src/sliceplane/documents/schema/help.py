"""What ``kubectl explain`` says of the kinds that this project is about: our own words, for a person at a terminal.

By definition (see ``schema.model``), then by field; "" is the definition itself.  A text may be missing: the field then
shows without one.  ``COMMON`` holds what is the same in every kind.
"""

from __future__ import annotations

from typing import Final

from sliceplane.documents.schema.model import help_texts

COMMON: Final[dict[str, str]] = {
    "apiVersion": "The group and version of this object's form, for example v1 or discovery.k8s.io/v1.",
    "kind": "What this object is. It is fixed by the address that the object is sent to, and may be left out there.",
    "metadata": "Name, labels and all else that objects of every kind have.",
    "spec": "What is wanted.",
    "status": "What was last observed. Written by controllers.",
}

_ENDPOINT_SLICE: Final[dict[str, dict[str, str]]] = {
    "discovery.EndpointSlice": {
        "": (
            "A part of the endpoints of a Service. A Service has as many slices as its endpoints need, so that a "
            "change of one endpoint sends one small object to every watcher and not the whole list. The slices of a "
            "Service carry its name in the label kubernetes.io/service-name; who wants all its endpoints joins all of "
            "them. One endpoint may be in two slices for a moment while it is moved, and readers must count it once."
        ),
        "addressType": (
            "What the addresses of all endpoints in this slice are: IPv4, IPv6, or FQDN (a DNS name; deprecated). It "
            "cannot be changed: a Service with both families has slices for each."
        ),
        "endpoints": (
            "The endpoints, at most 1000; the controller puts at most 100 into a slice unless it is told otherwise. "
            "The list has one owner: a write replaces all of it."
        ),
        "ports": (
            "The ports that every endpoint in this slice has, by name. Endpoints with other port numbers are in "
            "another slice. An empty list means that there are no ports."
        ),
    },
    "discovery.Endpoint": {
        "": "One backend: mostly a Pod, reachable under its addresses at all ports of the slice.",
        "addresses": (
            "Where the endpoint is reached, 1 to 100 addresses of the slice's address type. They are taken to be "
            "interchangeable, and kube-proxy uses the first one only."
        ),
        "conditions": "Whether the endpoint should get traffic.",
        "deprecatedTopology": (
            "Topology labels as v1beta1 had them. Read nodeName and zone. A value given by a client is not stored."
        ),
        "hints": "For which consumers this endpoint is meant, so that traffic can stay near.",
        "hostname": (
            "The endpoint's own name within its Service, for DNS names like NAME.SERVICE.NAMESPACE.svc. A lower-case "
            "DNS label. Endpoints with the same name answer together."
        ),
        "nodeName": "The node that the endpoint runs on. Consumers use it to tell local endpoints from others.",
        "targetRef": "The object behind the endpoint, as a rule a Pod.",
        "zone": "The zone that the endpoint runs in.",
    },
    "discovery.EndpointConditions": {
        "": "The state of an endpoint. A value that is missing is unknown; the defaults for reading are told at each.",
        "ready": (
            "The endpoint takes traffic: it is serving and not terminating, or its Service publishes endpoints that "
            "are not ready. Missing means true."
        ),
        "serving": (
            "The endpoint answers, terminating or not: for a Pod, what its readiness probe says. A consumer may fall "
            "back on endpoints that serve while they terminate. Missing means the value of ready."
        ),
        "terminating": "The endpoint is going away: for a Pod, it has a deletion timestamp. Missing means false.",
    },
    "discovery.EndpointHints": {
        "": (
            "Advice on who should use an endpoint. A consumer may pass over it, and passes over all hints of a "
            "Service if one endpoint has none."
        ),
        "forNodes": "Nodes whose consumers should use this endpoint, at most 8.",
        "forZones": "Zones whose consumers should use this endpoint, at most 8.",
    },
    "discovery.ForNode": {"": "A node that an endpoint is meant for.", "name": "The node's name."},
    "discovery.ForZone": {"": "A zone that an endpoint is meant for.", "name": "The zone's name."},
    "discovery.EndpointPort": {
        "": "One port that all endpoints of a slice have.",
        "appProtocol": (
            "What is spoken on this port beyond its transport protocol: an IANA service name such as http, or a name "
            "with a prefix such as kubernetes.io/h2c."
        ),
        "name": (
            "The name of the Service's port that this is; empty if the Service has one port without a name. Unique "
            "within the slice."
        ),
        "port": (
            "The port number at the endpoints. Missing means that it is not restricted, to be read by the slice's "
            "consumer; kube-proxy passes over such a port."
        ),
        "protocol": "TCP, UDP or SCTP. The default is TCP.",
    },
}

_SERVICE: Final[dict[str, dict[str, str]]] = {
    "core.Service": {
        "": (
            "A name and, mostly, an address for a set of endpoints. Its selector says which Pods those are; the "
            "EndpointSlices of the Service say what was found."
        )
    },
    "core.ServiceSpec": {
        "": "What a Service offers and to whom.",
        "allocateLoadBalancerNodePorts": "Whether a LoadBalancer Service gets node ports too. The default is true.",
        "clusterIP": (
            "The virtual address, given by the server if none is asked for. None makes the Service headless: no "
            "address, and DNS answers with the endpoints. The first of clusterIPs."
        ),
        "clusterIPs": "The virtual addresses, one per family, in the order of ipFamilies; at most two.",
        "externalIPs": "Further addresses whose traffic nodes accept for this Service. You bring it to the nodes.",
        "externalName": "The DNS name that a Service of type ExternalName stands for.",
        "externalTrafficPolicy": (
            "How traffic from outside is spread: Cluster uses all endpoints, Local those on the node where it arrives "
            "and keeps the client's address."
        ),
        "healthCheckNodePort": (
            "The node port where a load balancer asks whether a node has endpoints. For LoadBalancer Services whose "
            "externalTrafficPolicy is Local."
        ),
        "internalTrafficPolicy": (
            "How traffic from inside is spread: Cluster uses all endpoints, Local those on the client's node or none."
        ),
        "ipFamilies": "The families of the virtual addresses, IPv4 or IPv6 or both; the first one is the main one.",
        "ipFamilyPolicy": "SingleStack, PreferDualStack or RequireDualStack.",
        "loadBalancerClass": "Which implementation serves a LoadBalancer Service. Missing means the default one.",
        "loadBalancerIP": "Deprecated. An address asked of the load balancer.",
        "loadBalancerSourceRanges": "CIDRs from which the load balancer takes traffic. Empty means all.",
        "ports": "The ports of the Service, told apart by port and protocol. Each needs a name if there are several.",
        "publishNotReadyAddresses": (
            "Treat all endpoints as ready. For peers that must find each other before they are."
        ),
        "selector": (
            "Labels of the Pods that are the endpoints. Empty means that another program writes the EndpointSlices."
        ),
        "sessionAffinity": "ClientIP sends one client to the same endpoint; None, the default, does not.",
        "sessionAffinityConfig": "Settings of session affinity.",
        "trafficDistribution": (
            "A preference for near endpoints: PreferSameZone (PreferClose is an old name of it) or PreferSameNode; or "
            "the name of a heuristic, with its domain, such as sliceplane.dev/Balanced. "
            "Consumers follow it by the hints in the EndpointSlices."
        ),
        "type": (
            "ClusterIP (an address inside, the default), NodePort (and a port on every node), LoadBalancer (and a "
            "load balancer) or ExternalName (a DNS alias, no address)."
        ),
    },
    "core.ServicePort": {
        "": "One port of a Service.",
        "appProtocol": "What is spoken on this port beyond its transport protocol.",
        "name": (
            "The name of the port, a DNS label. EndpointSlices use it to say which port of the endpoints belongs to it."
        ),
        "nodePort": "The port on every node, for Services of type NodePort and LoadBalancer.",
        "port": "The port at the Service's address.",
        "protocol": "TCP, UDP or SCTP. The default is TCP.",
        "targetPort": "The port at the endpoints: a number, or the name of a container's port. The default is port.",
    },
    "core.ServiceStatus": {
        "": "What was observed of a Service.",
        "conditions": "The state of the Service, by type.",
        "loadBalancer": "Where the load balancer takes traffic.",
    },
    "core.SessionAffinityConfig": {"": "Settings of session affinity.", "clientIP": "Settings of affinity by address."},
    "core.ClientIPConfig": {
        "": "Settings of affinity by the client's address.",
        "timeoutSeconds": (
            "How long a client keeps its endpoint after its last connection, 1 to 86400. The default is 10800."
        ),
    },
}

_ENDPOINTS: Final[dict[str, dict[str, str]]] = {
    "core.Endpoints": {
        "": (
            "Deprecated: read EndpointSlices. All endpoints of a Service in one object, which has its name; cut off "
            "at 1000 addresses."
        ),
        "subsets": "Addresses and the ports that they have in common, subset by subset.",
    },
    "core.EndpointSubset": {
        "": "Every one of these addresses at every one of these ports.",
        "addresses": "Addresses that take traffic.",
        "notReadyAddresses": "Addresses that should not get traffic now.",
        "ports": "Ports of all of these addresses.",
    },
    "core.EndpointAddress": {
        "": "One address.",
        "hostname": "The endpoint's own name, for DNS.",
        "ip": "The IP address.",
        "nodeName": "The node that the endpoint runs on.",
        "targetRef": "The object behind the address.",
    },
    "core.EndpointPort": {
        "": "One port.",
        "appProtocol": "What is spoken on this port beyond its transport protocol.",
        "name": "The name of the Service's port; needed if there are several.",
        "port": "The port number.",
        "protocol": "TCP, UDP or SCTP. The default is TCP.",
    },
}

_META: Final[dict[str, dict[str, str]]] = {
    "meta.ObjectMeta": {
        "": "What objects of every kind have.",
        "annotations": "Free text for tools, by key; not for selecting. At most 256 KiB in all.",
        "creationTimestamp": "When the object was made. Set by the server.",
        "deletionGracePeriodSeconds": "How long the object may take to go. Set by the server when it is deleted.",
        "deletionTimestamp": (
            "When the object is to be gone. Set by the server when it is deleted and still has finalizers or a grace "
            "period."
        ),
        "finalizers": "Who must finish something before the object goes. Each removes its own entry.",
        "generateName": "The start of a name, for the server to complete. Used if name is empty.",
        "generation": "A number that grows when what is wanted changes. Set by the server.",
        "labels": "Short texts to select objects by.",
        "managedFields": "Who set which fields. Kept by the server for server-side apply.",
        "name": "The name, unique for the kind in its namespace. It cannot be changed.",
        "namespace": "The namespace that the object is in. Empty for kinds that have none.",
        "ownerReferences": "Objects that this one belongs to. It is deleted when the last of them is gone.",
        "resourceVersion": (
            "Which version of the object this is. An update that names it fails if there is a newer one."
        ),
        "selfLink": "No longer used.",
        "uid": "An identity that no other object ever has, in whatever place and time. Set by the server.",
    },
    "meta.OwnerReference": {
        "": "An object that another one belongs to, in the same namespace or in none.",
        "apiVersion": "Its group and version.",
        "blockOwnerDeletion": "With deletion in the foreground, the owner waits until this object is gone.",
        "controller": "This owner is the one that manages the object. At most one is.",
        "kind": "Its kind.",
        "name": "Its name.",
        "uid": "Its identity.",
    },
    "meta.ListMeta": {
        "": "What lists of every kind have.",
        "continue": "To be sent to get the next part of the list. Empty in the last part.",
        "remainingItemCount": "How many items come after this part, if that is known.",
        "resourceVersion": "Which state of the store this list shows. A watch goes on from here.",
        "selfLink": "No longer used.",
    },
    "core.ObjectReference": {
        "": "Which object is meant.",
        "apiVersion": "Its group and version.",
        "fieldPath": "Which part of it is meant.",
        "kind": "Its kind.",
        "name": "Its name.",
        "namespace": "Its namespace.",
        "resourceVersion": "Which version of it is meant.",
        "uid": "Its identity.",
    },
}

_OTHERS: Final[dict[str, dict[str, str]]] = {
    "apps.DaemonSet": {"": "Keeps one Pod on every node that fits."},
    "apps.DaemonSetSpec": {
        "": "Which Pod, on which nodes, and how it is replaced.",
        "minReadySeconds": "How long a Pod must have been ready before it counts as available. The default is 0.",
        "revisionHistoryLimit": "How many older revisions are kept. The default is 10.",
        "selector": "Which Pods belong to the set. It must match the template's labels and cannot be changed.",
        "template": "The Pod. Its node selector, affinity and tolerations say which nodes fit.",
        "updateStrategy": "How Pods are replaced when the template changes.",
    },
    "apps.Deployment": {"": "Keeps a number of like Pods running and replaces them step by step when they change."},
    "apps.ReplicaSet": {"": "Keeps a number of like Pods running. Mostly made by a Deployment."},
    "apps.StatefulSet": {"": "Keeps a number of Pods with names that stay: NAME-0, NAME-1 and so on."},
    "apps.StatefulSetSpec": {
        "": "Which Pods, how many, and in which order they are made and replaced.",
        "minReadySeconds": "How long a Pod must have been ready before it counts as available. The default is 0.",
        "ordinals": "With which number the names begin.",
        "podManagementPolicy": "OrderedReady (one after the other, the default) or Parallel (all at once).",
        "replicas": "How many Pods are wanted. The default is 1.",
        "revisionHistoryLimit": "How many older revisions are kept. The default is 10.",
        "selector": "Which Pods belong to the set. It must match the template's labels and cannot be changed.",
        "serviceName": "The headless Service that gives the Pods their DNS names.",
        "template": "The Pod. Its name, host name and subdomain are set for each one.",
        "updateStrategy": "How Pods are replaced when the template changes, and from which number on.",
        "volumeClaimTemplates": "Storage for each Pod. Accepted, but no storage is made here.",
    },
    "coordination.Lease": {"": "Says who does a job now, and until when others must wait before they take it over."},
    "coordination.LeaseSpec": {
        "acquireTime": "When the present holder took the lease.",
        "holderIdentity": "Who holds the lease.",
        "leaseDurationSeconds": "How long after the last renewal others must wait.",
        "leaseTransitions": "How often the lease has changed hands.",
        "renewTime": "When the holder last renewed the lease.",
    },
    "core.ConfigMap": {
        "": "Settings, as texts by key.",
        "binaryData": "Values that are no UTF-8 text, in base64.",
        "data": "Values that are text.",
        "immutable": "The data can no longer be changed; only deleted with the whole object.",
    },
    "core.Event": {"": "Something that happened to an object, for people to read. Kept for an hour."},
    "core.Namespace": {"": "A scope for names. Everything in it goes when it is deleted."},
    "core.Node": {"": "A machine that Pods run on."},
    "core.Pod": {"": "Containers that run together on one node and share an address."},
    "core.PodTemplate": {"": "A Pod to be, kept for later use."},
    "core.ReplicationController": {
        "": "Keeps a number of like Pods running. Older than ReplicaSets; a Deployment is the better choice."
    },
    "networking.Ingress": {
        "": "Which Service answers HTTP requests from outside, by host and path. An ingress controller acts on it."
    },
    "networking.IngressClass": {"": "A kind of ingress controller that an Ingress can name."},
    "networking.NetworkPolicy": {"": "Which traffic Pods may have. Stored here; a network plug-in acts on it."},
    "node.RuntimeClass": {
        "": "A way to run containers that a Pod can name.",
        "handler": "What the node's container runtime calls this way. It cannot be changed.",
    },
    "policy.PodDisruptionBudget": {"": "How many of some Pods may be gone at a time on purpose."},
    "policy.PodDisruptionBudgetSpec": {
        "": "Which Pods, and how many of them must stay or may go.",
        "maxUnavailable": "How many may be gone, a number or a percentage. Not together with minAvailable.",
        "minAvailable": "How many must stay, a number or a percentage. Not together with maxUnavailable.",
        "selector": "Which Pods are meant. An empty one means all of the namespace.",
        "unhealthyPodEvictionPolicy": "When unready Pods may go: IfHealthyBudget (the default) or AlwaysAllow.",
    },
    "scheduling.PriorityClass": {
        "": "A name for how important a Pod is.",
        "description": "When to use this class.",
        "globalDefault": "Pods that name no class have this one. At most one class is so.",
        "preemptionPolicy": "Whether a Pod may push out less important ones: PreemptLowerPriority or Never.",
        "value": "The priority. Higher is more important. It cannot be changed.",
    },
}

HELP: Final[dict[str, dict[str, str]]] = {
    **_ENDPOINT_SLICE,
    **help_texts(_ENDPOINT_SLICE),
    **_SERVICE,
    **_ENDPOINTS,
    **_META,
    **_OTHERS,
}
