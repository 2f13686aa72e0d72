from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerFrame(_message.Message):
    __slots__ = ("hello", "raft", "requests", "replies", "deliveries", "liveness", "position")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RAFT_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    LIVENESS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    raft: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    requests: _containers.RepeatedCompositeFieldContainer[GroupRequest]
    replies: _containers.RepeatedCompositeFieldContainer[GroupReply]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivery]
    liveness: Liveness
    position: Position
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., raft: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[GroupRequest, _Mapping]]] = ..., replies: _Optional[_Iterable[_Union[GroupReply, _Mapping]]] = ..., deliveries: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., liveness: _Optional[_Union[Liveness, _Mapping]] = ..., position: _Optional[_Union[Position, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("cluster_id", "node", "incarnation", "protocol_version", "enquiry", "description")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ENQUIRY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node: str
    incarnation: int
    protocol_version: int
    enquiry: Enquiry
    description: Description
    def __init__(self, cluster_id: _Optional[str] = ..., node: _Optional[str] = ..., incarnation: _Optional[int] = ..., protocol_version: _Optional[int] = ..., enquiry: _Optional[_Union[Enquiry, _Mapping]] = ..., description: _Optional[_Union[Description, _Mapping]] = ...) -> None: ...

class Enquiry(_message.Message):
    __slots__ = ("address", "cluster_uid", "has_data")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_UID_FIELD_NUMBER: _ClassVar[int]
    HAS_DATA_FIELD_NUMBER: _ClassVar[int]
    address: str
    cluster_uid: str
    has_data: bool
    def __init__(self, address: _Optional[str] = ..., cluster_uid: _Optional[str] = ..., has_data: _Optional[bool] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("standing", "cluster_uid", "revision", "members", "voters", "learners", "reason", "has_data")
    class Standing(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Description.Standing]
        UNFOUNDED: _ClassVar[Description.Standing]
        MEMBER: _ClassVar[Description.Standing]
        REMOVED: _ClassVar[Description.Standing]
        FOREIGN: _ClassVar[Description.Standing]
        REFUSED: _ClassVar[Description.Standing]
    UNKNOWN: Description.Standing
    UNFOUNDED: Description.Standing
    MEMBER: Description.Standing
    REMOVED: Description.Standing
    FOREIGN: Description.Standing
    REFUSED: Description.Standing
    class MembersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STANDING_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_UID_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HAS_DATA_FIELD_NUMBER: _ClassVar[int]
    standing: Description.Standing
    cluster_uid: str
    revision: int
    members: _containers.ScalarMap[str, str]
    voters: _containers.RepeatedScalarFieldContainer[str]
    learners: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    has_data: bool
    def __init__(self, standing: _Optional[_Union[Description.Standing, str]] = ..., cluster_uid: _Optional[str] = ..., revision: _Optional[int] = ..., members: _Optional[_Mapping[str, str]] = ..., voters: _Optional[_Iterable[str]] = ..., learners: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., has_data: _Optional[bool] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("group", "kind", "term", "index", "log_term", "commit", "reject", "hint", "entries", "snapshot", "force")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    group: int
    kind: int
    term: int
    index: int
    log_term: int
    commit: int
    reject: bool
    hint: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    snapshot: SnapshotChunk
    force: bool
    def __init__(self, group: _Optional[int] = ..., kind: _Optional[int] = ..., term: _Optional[int] = ..., index: _Optional[int] = ..., log_term: _Optional[int] = ..., commit: _Optional[int] = ..., reject: _Optional[bool] = ..., hint: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., snapshot: _Optional[_Union[SnapshotChunk, _Mapping]] = ..., force: _Optional[bool] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("index", "term", "kind", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    kind: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., kind: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("index", "term", "voters", "learners", "chunk", "last", "data", "live", "terms")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    voters: _containers.RepeatedScalarFieldContainer[str]
    learners: _containers.RepeatedScalarFieldContainer[str]
    chunk: int
    last: bool
    data: bytes
    live: _containers.RepeatedCompositeFieldContainer[Entry]
    terms: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., voters: _Optional[_Iterable[str]] = ..., learners: _Optional[_Iterable[str]] = ..., chunk: _Optional[int] = ..., last: _Optional[bool] = ..., data: _Optional[bytes] = ..., live: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., terms: _Optional[_Iterable[int]] = ...) -> None: ...

class GroupRequest(_message.Message):
    __slots__ = ("id", "group", "command")
    ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    id: int
    group: int
    command: bytes
    def __init__(self, id: _Optional[int] = ..., group: _Optional[int] = ..., command: _Optional[bytes] = ...) -> None: ...

class GroupReply(_message.Message):
    __slots__ = ("id", "status", "leader", "reply")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[GroupReply.Status]
        NOT_LEADER: _ClassVar[GroupReply.Status]
        UNKNOWN_GROUP: _ClassVar[GroupReply.Status]
        OVERLOADED: _ClassVar[GroupReply.Status]
    OK: GroupReply.Status
    NOT_LEADER: GroupReply.Status
    UNKNOWN_GROUP: GroupReply.Status
    OVERLOADED: GroupReply.Status
    ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    id: int
    status: GroupReply.Status
    leader: str
    reply: bytes
    def __init__(self, id: _Optional[int] = ..., status: _Optional[_Union[GroupReply.Status, str]] = ..., leader: _Optional[str] = ..., reply: _Optional[bytes] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("group", "term", "kind", "payload")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    group: int
    term: int
    kind: int
    payload: bytes
    def __init__(self, group: _Optional[int] = ..., term: _Optional[int] = ..., kind: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("log", "runs", "batch", "admitted", "remembered")
    LOG_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REMEMBERED_FIELD_NUMBER: _ClassVar[int]
    log: int
    runs: _containers.RepeatedCompositeFieldContainer[LogRun]
    batch: int
    admitted: _containers.RepeatedCompositeFieldContainer[LogRun]
    remembered: LogPromise
    def __init__(self, log: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[LogRun, _Mapping]]] = ..., batch: _Optional[int] = ..., admitted: _Optional[_Iterable[_Union[LogRun, _Mapping]]] = ..., remembered: _Optional[_Union[LogPromise, _Mapping]] = ...) -> None: ...

class LogRun(_message.Message):
    __slots__ = ("number", "mark", "batch")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    number: int
    mark: int
    batch: int
    def __init__(self, number: _Optional[int] = ..., mark: _Optional[int] = ..., batch: _Optional[int] = ...) -> None: ...

class LogPromise(_message.Message):
    __slots__ = ("log", "run", "mark", "batch")
    LOG_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    log: int
    run: int
    mark: int
    batch: int
    def __init__(self, log: _Optional[int] = ..., run: _Optional[int] = ..., mark: _Optional[int] = ..., batch: _Optional[int] = ...) -> None: ...

class Liveness(_message.Message):
    __slots__ = ("alarms", "memory_used", "memory_limit", "disk_free")
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    alarms: _containers.RepeatedScalarFieldContainer[str]
    memory_used: int
    memory_limit: int
    disk_free: int
    def __init__(self, alarms: _Optional[_Iterable[str]] = ..., memory_used: _Optional[int] = ..., memory_limit: _Optional[int] = ..., disk_free: _Optional[int] = ...) -> None: ...
