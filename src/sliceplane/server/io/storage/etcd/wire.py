"""The messages of etcd's API that we speak, as protobuf classes made at import from the table
below.

Names and numbers are facts of ``etcdserverpb`` and ``mvccpb`` (API 3.4 and later); members that we
never use are left out, and protobuf keeps what it does not know. Enumerations are int32 here, which
is the same on the wire. The classes are in a pool of their own, so that another library's etcd
messages cannot clash with them.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "sliceplane.etcd"
_SCALARS: Final = {"bytes": 12, "string": 9, "int64": 3, "uint64": 4, "int32": 5, "bool": 8}

#: message -> "TYPE NAME NUMBER", a star after the type for repeated ones
_MESSAGES: Final[dict[str, tuple[str, ...]]] = {
    "Header": (
        "uint64 cluster_id 1",
        "uint64 member_id 2",
        "int64 revision 3",
        "uint64 raft_term 4",
    ),
    "KeyValue": (
        "bytes key 1",
        "int64 create_revision 2",
        "int64 mod_revision 3",
        "int64 version 4",
        "bytes value 5",
    ),
    "Event": ("int32 type 1", "KeyValue kv 2"),
    "RangeRequest": ("bytes key 1", "bytes range_end 2", "int64 limit 3", "int64 revision 4"),
    "RangeResponse": ("Header header 1", "KeyValue* kvs 2", "bool more 3", "int64 count 4"),
    "PutRequest": ("bytes key 1", "bytes value 2"),
    "PutResponse": ("Header header 1",),
    "DeleteRangeRequest": ("bytes key 1", "bytes range_end 2"),
    "DeleteRangeResponse": ("Header header 1", "int64 deleted 2"),
    "Compare": (
        "int32 result 1",
        "int32 target 2",
        "bytes key 3",
        "int64 number 6",
        "bytes value 7",
    ),
    "RequestOp": ("RangeRequest range 1", "PutRequest put 2", "DeleteRangeRequest delete 3"),
    "ResponseOp": ("RangeResponse range 1", "PutResponse put 2", "DeleteRangeResponse delete 3"),
    "TxnRequest": ("Compare* compare 1", "RequestOp* success 2", "RequestOp* failure 3"),
    "TxnResponse": ("Header header 1", "bool succeeded 2", "ResponseOp* responses 3"),
    "CompactionRequest": ("int64 revision 1",),
    "CompactionResponse": ("Header header 1",),
    "WatchCreateRequest": (
        "bytes key 1",
        "bytes range_end 2",
        "int64 start_revision 3",
        "bool progress_notify 4",
        "bool fragment 8",
    ),
    "WatchRequest": ("WatchCreateRequest create_request 1",),
    "WatchResponse": (
        "Header header 1",
        "int64 watch_id 2",
        "bool created 3",
        "bool canceled 4",
        "int64 compact_revision 5",
        "string cancel_reason 6",
        "bool fragment 7",
        "Event* events 11",
    ),
    "StatusRequest": (),
    "StatusResponse": (
        "Header header 1",
        "string version 2",
        "int64 db_size 3",
        "uint64 leader 4",
        "uint64 raft_index 5",
    ),
}
#: ``Compare.target`` that looks at the revision of the last change; 0 if there is no such key
MOD_REVISION: Final = 2
#: ``Compare.target`` that looks at the value, byte by byte; ``Compare.result`` says which side of
#: ours it must be on
VALUE: Final = 3
GREATER: Final = 1
LESS: Final = 2
#: ``Event.type``
DELETE: Final = 1


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="sliceplane/etcd.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, members in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for member in members:
            kind, member_name, number = member.split()
            field = message.field.add(
                name=member_name, number=int(number), label=3 if kind.endswith("*") else 1
            )
            kind = kind.removesuffix("*")
            if kind in _SCALARS:
                field.type = _SCALARS[kind]  # type: ignore[assignment]  # the enumeration's number
            else:
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
    return file


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Compare: Any = _class("Compare")
CompactionRequest: Any = _class("CompactionRequest")
DeleteRangeRequest: Any = _class("DeleteRangeRequest")
PutRequest: Any = _class("PutRequest")
RangeRequest: Any = _class("RangeRequest")
RequestOp: Any = _class("RequestOp")
StatusRequest: Any = _class("StatusRequest")
TxnRequest: Any = _class("TxnRequest")
WatchCreateRequest: Any = _class("WatchCreateRequest")
WatchRequest: Any = _class("WatchRequest")
WatchResponse: Any = _class("WatchResponse")

#: method -> its path, request and answer
METHODS: Final[dict[str, tuple[str, Any]]] = {
    "range": ("/etcdserverpb.KV/Range", _class("RangeResponse")),
    "txn": ("/etcdserverpb.KV/Txn", _class("TxnResponse")),
    "compact": ("/etcdserverpb.KV/Compact", _class("CompactionResponse")),
    "status": ("/etcdserverpb.Maintenance/Status", _class("StatusResponse")),
}
WATCH: Final = "/etcdserverpb.Watch/Watch"


def put(key: bytes, value: bytes) -> Any:
    return RequestOp(put=PutRequest(key=key, value=value))


def delete(key: bytes) -> Any:
    return RequestOp(delete=DeleteRangeRequest(key=key))


def get(key: bytes, range_end: bytes = b"") -> Any:
    return RequestOp(range=RangeRequest(key=key, range_end=range_end))


def unchanged_since(key: bytes, mod_revision: int) -> Any:
    """The condition that *key* was last changed at *mod_revision*; 0: that it does not exist."""
    return Compare(result=0, target=MOD_REVISION, key=key, number=mod_revision)


def begins_with(key: bytes, start: bytes) -> list[Any]:
    """The conditions that the value of *key* is longer than *start* and begins with it; no 0xff may
    follow that.
    """
    return [
        Compare(result=GREATER, target=VALUE, key=key, value=start),
        Compare(result=LESS, target=VALUE, key=key, value=start + b"\xff"),
    ]


def end_of(prefix: bytes) -> bytes:
    """The end of the range of keys that begin with *prefix*, which must not end in 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))
