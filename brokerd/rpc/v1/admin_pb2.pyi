from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetInfoResponse(_message.Message):
    __slots__ = ("cluster_id", "cluster_name", "node", "version", "features", "revision", "feature_flags")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FEATURE_FLAGS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    cluster_name: str
    node: str
    version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    revision: int
    feature_flags: _containers.RepeatedCompositeFieldContainer[FeatureFlag]
    def __init__(self, cluster_id: _Optional[str] = ..., cluster_name: _Optional[str] = ..., node: _Optional[str] = ..., version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., revision: _Optional[int] = ..., feature_flags: _Optional[_Iterable[_Union[FeatureFlag, _Mapping]]] = ...) -> None: ...

class FeatureFlag(_message.Message):
    __slots__ = ("name", "since", "description", "enabled", "lacking")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    name: str
    since: str
    description: str
    enabled: bool
    lacking: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., since: _Optional[str] = ..., description: _Optional[str] = ..., enabled: _Optional[bool] = ..., lacking: _Optional[_Iterable[str]] = ...) -> None: ...

class EnableFeaturesRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class EnableFeaturesResponse(_message.Message):
    __slots__ = ("enabled",)
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    enabled: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, enabled: _Optional[_Iterable[str]] = ...) -> None: ...

class Owner(_message.Message):
    __slots__ = ("managed_by", "resource", "uid", "deletion_policy", "protected")
    MANAGED_BY_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DELETION_POLICY_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_FIELD_NUMBER: _ClassVar[int]
    managed_by: str
    resource: str
    uid: str
    deletion_policy: str
    protected: bool
    def __init__(self, managed_by: _Optional[str] = ..., resource: _Optional[str] = ..., uid: _Optional[str] = ..., deletion_policy: _Optional[str] = ..., protected: _Optional[bool] = ...) -> None: ...

class TopologyObject(_message.Message):
    __slots__ = ("kind", "vhost", "name", "spec", "hash", "owner", "revision")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    kind: str
    vhost: str
    name: str
    spec: str
    hash: str
    owner: Owner
    revision: int
    def __init__(self, kind: _Optional[str] = ..., vhost: _Optional[str] = ..., name: _Optional[str] = ..., spec: _Optional[str] = ..., hash: _Optional[str] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., revision: _Optional[int] = ...) -> None: ...

class ListTopologyRequest(_message.Message):
    __slots__ = ("kinds", "vhost", "with_ended")
    KINDS_FIELD_NUMBER: _ClassVar[int]
    VHOST_FIELD_NUMBER: _ClassVar[int]
    WITH_ENDED_FIELD_NUMBER: _ClassVar[int]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    vhost: str
    with_ended: bool
    def __init__(self, kinds: _Optional[_Iterable[str]] = ..., vhost: _Optional[str] = ..., with_ended: _Optional[bool] = ...) -> None: ...

class TopologyPage(_message.Message):
    __slots__ = ("objects", "revision", "ended")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[TopologyObject]
    revision: int
    ended: _containers.RepeatedCompositeFieldContainer[TopologyEvent]
    def __init__(self, objects: _Optional[_Iterable[_Union[TopologyObject, _Mapping]]] = ..., revision: _Optional[int] = ..., ended: _Optional[_Iterable[_Union[TopologyEvent, _Mapping]]] = ...) -> None: ...

class ApplyRequest(_message.Message):
    __slots__ = ("operations",)
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    def __init__(self, operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("id", "action", "kind", "vhost", "name", "spec", "owner", "precondition", "if_empty", "if_unused", "dry_run", "confirmed")
    class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UPSERT: _ClassVar[Operation.Action]
        DELETE: _ClassVar[Operation.Action]
        SET_OWNER: _ClassVar[Operation.Action]
    UPSERT: Operation.Action
    DELETE: Operation.Action
    SET_OWNER: Operation.Action
    ID_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PRECONDITION_FIELD_NUMBER: _ClassVar[int]
    IF_EMPTY_FIELD_NUMBER: _ClassVar[int]
    IF_UNUSED_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    id: str
    action: Operation.Action
    kind: str
    vhost: str
    name: str
    spec: str
    owner: Owner
    precondition: Precondition
    if_empty: bool
    if_unused: bool
    dry_run: bool
    confirmed: bool
    def __init__(self, id: _Optional[str] = ..., action: _Optional[_Union[Operation.Action, str]] = ..., kind: _Optional[str] = ..., vhost: _Optional[str] = ..., name: _Optional[str] = ..., spec: _Optional[str] = ..., owner: _Optional[_Union[Owner, _Mapping]] = ..., precondition: _Optional[_Union[Precondition, _Mapping]] = ..., if_empty: _Optional[bool] = ..., if_unused: _Optional[bool] = ..., dry_run: _Optional[bool] = ..., confirmed: _Optional[bool] = ...) -> None: ...

class Precondition(_message.Message):
    __slots__ = ("absent", "hash", "owner_uid")
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    OWNER_UID_FIELD_NUMBER: _ClassVar[int]
    absent: bool
    hash: str
    owner_uid: str
    def __init__(self, absent: _Optional[bool] = ..., hash: _Optional[str] = ..., owner_uid: _Optional[str] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[OperationResult]
    def __init__(self, results: _Optional[_Iterable[_Union[OperationResult, _Mapping]]] = ...) -> None: ...

class OperationResult(_message.Message):
    __slots__ = ("id", "code", "message", "current", "revision", "messages", "consumers", "needs_confirmation")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[OperationResult.Code]
        UNCHANGED: _ClassVar[OperationResult.Code]
        NOT_FOUND: _ClassVar[OperationResult.Code]
        PRECONDITION: _ClassVar[OperationResult.Code]
        IMMUTABLE: _ClassVar[OperationResult.Code]
        REFUSED: _ClassVar[OperationResult.Code]
        UNAVAILABLE: _ClassVar[OperationResult.Code]
    OK: OperationResult.Code
    UNCHANGED: OperationResult.Code
    NOT_FOUND: OperationResult.Code
    PRECONDITION: OperationResult.Code
    IMMUTABLE: OperationResult.Code
    REFUSED: OperationResult.Code
    UNAVAILABLE: OperationResult.Code
    ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_CONFIRMATION_FIELD_NUMBER: _ClassVar[int]
    id: str
    code: OperationResult.Code
    message: str
    current: TopologyObject
    revision: int
    messages: int
    consumers: int
    needs_confirmation: bool
    def __init__(self, id: _Optional[str] = ..., code: _Optional[_Union[OperationResult.Code, str]] = ..., message: _Optional[str] = ..., current: _Optional[_Union[TopologyObject, _Mapping]] = ..., revision: _Optional[int] = ..., messages: _Optional[int] = ..., consumers: _Optional[int] = ..., needs_confirmation: _Optional[bool] = ...) -> None: ...

class WatchTopologyRequest(_message.Message):
    __slots__ = ("since_revision",)
    SINCE_REVISION_FIELD_NUMBER: _ClassVar[int]
    since_revision: int
    def __init__(self, since_revision: _Optional[int] = ...) -> None: ...

class TopologyEvent(_message.Message):
    __slots__ = ("change", "object", "revision", "cause")
    class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PUT: _ClassVar[TopologyEvent.Change]
        DELETED: _ClassVar[TopologyEvent.Change]
        COMPACTED: _ClassVar[TopologyEvent.Change]
        BOOKMARK: _ClassVar[TopologyEvent.Change]
    PUT: TopologyEvent.Change
    DELETED: TopologyEvent.Change
    COMPACTED: TopologyEvent.Change
    BOOKMARK: TopologyEvent.Change
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    change: TopologyEvent.Change
    object: TopologyObject
    revision: int
    cause: str
    def __init__(self, change: _Optional[_Union[TopologyEvent.Change, str]] = ..., object: _Optional[_Union[TopologyObject, _Mapping]] = ..., revision: _Optional[int] = ..., cause: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("kind", "vhost")
    KIND_FIELD_NUMBER: _ClassVar[int]
    VHOST_FIELD_NUMBER: _ClassVar[int]
    kind: str
    vhost: str
    def __init__(self, kind: _Optional[str] = ..., vhost: _Optional[str] = ...) -> None: ...

class ListPage(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rows: _Optional[_Iterable[str]] = ...) -> None: ...

class MemberStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "running", "version", "memory_used", "memory_limit", "disk_free", "alarms", "leaders", "replicas", "caught_up", "peer_address", "state", "quorum_critical", "host", "zone")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DISK_FREE_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUORUM_CRITICAL_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    name: str
    running: bool
    version: str
    memory_used: int
    memory_limit: int
    disk_free: int
    alarms: _containers.RepeatedScalarFieldContainer[str]
    leaders: int
    replicas: int
    caught_up: bool
    peer_address: str
    state: str
    quorum_critical: bool
    host: str
    zone: str
    def __init__(self, name: _Optional[str] = ..., running: _Optional[bool] = ..., version: _Optional[str] = ..., memory_used: _Optional[int] = ..., memory_limit: _Optional[int] = ..., disk_free: _Optional[int] = ..., alarms: _Optional[_Iterable[str]] = ..., leaders: _Optional[int] = ..., replicas: _Optional[int] = ..., caught_up: _Optional[bool] = ..., peer_address: _Optional[str] = ..., state: _Optional[str] = ..., quorum_critical: _Optional[bool] = ..., host: _Optional[str] = ..., zone: _Optional[str] = ...) -> None: ...

class MemberStatusResponse(_message.Message):
    __slots__ = ("members", "catalog_leader")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CATALOG_LEADER_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    catalog_leader: str
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., catalog_leader: _Optional[str] = ...) -> None: ...

class SafeToStopRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class SafeToStopResponse(_message.Message):
    __slots__ = ("safe", "reasons")
    SAFE_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    safe: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, safe: _Optional[bool] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("member", "deadline_ms")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    member: str
    deadline_ms: int
    def __init__(self, member: _Optional[str] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("leaders_moved", "leaders_left", "connections_closed")
    LEADERS_MOVED_FIELD_NUMBER: _ClassVar[int]
    LEADERS_LEFT_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_CLOSED_FIELD_NUMBER: _ClassVar[int]
    leaders_moved: int
    leaders_left: int
    connections_closed: int
    def __init__(self, leaders_moved: _Optional[int] = ..., leaders_left: _Optional[int] = ..., connections_closed: _Optional[int] = ...) -> None: ...

class ReviveRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class ReviveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MemberRequest(_message.Message):
    __slots__ = ("name", "peer_address", "force", "deadline_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    peer_address: str
    force: bool
    deadline_ms: int
    def __init__(self, name: _Optional[str] = ..., peer_address: _Optional[str] = ..., force: _Optional[bool] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class MemberResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, members: _Optional[_Iterable[str]] = ...) -> None: ...

class SetSettingsRequest(_message.Message):
    __slots__ = ("settings", "all_members")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ALL_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.ScalarMap[str, str]
    all_members: bool
    def __init__(self, settings: _Optional[_Mapping[str, str]] = ..., all_members: _Optional[bool] = ...) -> None: ...

class SetSettingsResponse(_message.Message):
    __slots__ = ("settings",)
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: _containers.ScalarMap[str, str]
    def __init__(self, settings: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PurgeQueueRequest(_message.Message):
    __slots__ = ("vhost", "name", "dead_letters")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    dead_letters: bool
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ..., dead_letters: _Optional[bool] = ...) -> None: ...

class PurgeQueueResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class BrowseQueueRequest(_message.Message):
    __slots__ = ("vhost", "name", "count", "state", "body_bytes", "page_token", "filter", "base64")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BODY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    BASE64_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    count: int
    state: str
    body_bytes: int
    page_token: str
    filter: str
    base64: bool
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ..., count: _Optional[int] = ..., state: _Optional[str] = ..., body_bytes: _Optional[int] = ..., page_token: _Optional[str] = ..., filter: _Optional[str] = ..., base64: _Optional[bool] = ..., **kwargs) -> None: ...

class BrowsePage(_message.Message):
    __slots__ = ("messages", "next_page_token", "looked_at", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    looked_at: int
    counts: _containers.ScalarMap[str, int]
    def __init__(self, messages: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ..., looked_at: _Optional[int] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class TriageQueueRequest(_message.Message):
    __slots__ = ("vhost", "name", "state", "filter", "page_token")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    state: str
    filter: str
    page_token: str
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., filter: _Optional[str] = ..., page_token: _Optional[str] = ...) -> None: ...

class TriagePage(_message.Message):
    __slots__ = ("groups", "next_page_token", "looked_at", "counts")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    next_page_token: str
    looked_at: int
    counts: _containers.ScalarMap[str, int]
    def __init__(self, groups: _Optional[_Iterable[str]] = ..., next_page_token: _Optional[str] = ..., looked_at: _Optional[int] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PreviewQueueJobRequest(_message.Message):
    __slots__ = ("order", "page_token")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    order: str
    page_token: str
    def __init__(self, order: _Optional[str] = ..., page_token: _Optional[str] = ...) -> None: ...

class QueueJobPreviewPage(_message.Message):
    __slots__ = ("groups", "rows", "targets", "next_page_token", "looked_at", "counts")
    class TargetsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    rows: _containers.RepeatedScalarFieldContainer[str]
    targets: _containers.ScalarMap[str, str]
    next_page_token: str
    looked_at: int
    counts: _containers.ScalarMap[str, int]
    def __init__(self, groups: _Optional[_Iterable[str]] = ..., rows: _Optional[_Iterable[str]] = ..., targets: _Optional[_Mapping[str, str]] = ..., next_page_token: _Optional[str] = ..., looked_at: _Optional[int] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class StartQueueJobRequest(_message.Message):
    __slots__ = ("order",)
    ORDER_FIELD_NUMBER: _ClassVar[int]
    order: str
    def __init__(self, order: _Optional[str] = ...) -> None: ...

class StartQueueJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class StopQueueJobRequest(_message.Message):
    __slots__ = ("vhost", "name")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class StopQueueJobResponse(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: str
    def __init__(self, job: _Optional[str] = ...) -> None: ...

class ListQueueJobsRequest(_message.Message):
    __slots__ = ("vhost", "name")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ListQueueJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class CloseConnectionRequest(_message.Message):
    __slots__ = ("id", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: str
    reason: str
    def __init__(self, id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CloseConnectionResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class AuthenticateRequest(_message.Message):
    __slots__ = ("user", "password")
    USER_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    user: str
    password: str
    def __init__(self, user: _Optional[str] = ..., password: _Optional[str] = ...) -> None: ...

class AuthenticateResponse(_message.Message):
    __slots__ = ("ok", "tags")
    OK_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ok: bool
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ok: _Optional[bool] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class CloseConnectionsRequest(_message.Message):
    __slots__ = ("vhost", "reason", "limit", "delay_ms", "all_members")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    ALL_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    reason: str
    limit: int
    delay_ms: int
    all_members: bool
    def __init__(self, vhost: _Optional[str] = ..., reason: _Optional[str] = ..., limit: _Optional[int] = ..., delay_ms: _Optional[int] = ..., all_members: _Optional[bool] = ...) -> None: ...

class CloseConnectionsResponse(_message.Message):
    __slots__ = ("closed", "unanswered")
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    closed: int
    unanswered: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, closed: _Optional[int] = ..., unanswered: _Optional[_Iterable[str]] = ...) -> None: ...

class StopAppRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StopAppResponse(_message.Message):
    __slots__ = ("closed",)
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    closed: int
    def __init__(self, closed: _Optional[int] = ...) -> None: ...

class StartAppRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StartAppResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetAlarmRequest(_message.Message):
    __slots__ = ("resource", "on")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    resource: str
    on: bool
    def __init__(self, resource: _Optional[str] = ..., on: _Optional[bool] = ...) -> None: ...

class SetAlarmResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetTracingRequest(_message.Message):
    __slots__ = ("vhost", "on")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    ON_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    on: bool
    def __init__(self, vhost: _Optional[str] = ..., on: _Optional[bool] = ...) -> None: ...

class SetTracingResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SetVariableRequest(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class SetVariableResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportDefinitionsRequest(_message.Message):
    __slots__ = ("vhost", "with_passwords")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    WITH_PASSWORDS_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    with_passwords: bool
    def __init__(self, vhost: _Optional[str] = ..., with_passwords: _Optional[bool] = ...) -> None: ...

class QueueSelection(_message.Message):
    __slots__ = ("vhost", "name", "vhost_pattern", "queue_pattern")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VHOST_PATTERN_FIELD_NUMBER: _ClassVar[int]
    QUEUE_PATTERN_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    vhost_pattern: str
    queue_pattern: str
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ..., vhost_pattern: _Optional[str] = ..., queue_pattern: _Optional[str] = ...) -> None: ...

class ChangeQueueMembersRequest(_message.Message):
    __slots__ = ("change", "member", "strategy", "queues", "deadline_ms")
    class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        GROW: _ClassVar[ChangeQueueMembersRequest.Change]
        SHRINK: _ClassVar[ChangeQueueMembersRequest.Change]
    GROW: ChangeQueueMembersRequest.Change
    SHRINK: ChangeQueueMembersRequest.Change
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    change: ChangeQueueMembersRequest.Change
    member: str
    strategy: str
    queues: QueueSelection
    deadline_ms: int
    def __init__(self, change: _Optional[_Union[ChangeQueueMembersRequest.Change, str]] = ..., member: _Optional[str] = ..., strategy: _Optional[str] = ..., queues: _Optional[_Union[QueueSelection, _Mapping]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class QueueMembersResult(_message.Message):
    __slots__ = ("vhost", "name", "size", "error")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    size: int
    error: str
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ..., size: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class QuorumStatusRequest(_message.Message):
    __slots__ = ("vhost", "name")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class QuorumMember(_message.Message):
    __slots__ = ("member", "state", "membership", "last_index", "commit_index", "applied_index", "snapshot_index", "term", "problem", "host", "zone")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    member: str
    state: str
    membership: str
    last_index: int
    commit_index: int
    applied_index: int
    snapshot_index: int
    term: int
    problem: str
    host: str
    zone: str
    def __init__(self, member: _Optional[str] = ..., state: _Optional[str] = ..., membership: _Optional[str] = ..., last_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., snapshot_index: _Optional[int] = ..., term: _Optional[int] = ..., problem: _Optional[str] = ..., host: _Optional[str] = ..., zone: _Optional[str] = ...) -> None: ...

class QuorumStatusResponse(_message.Message):
    __slots__ = ("leader", "members", "warning")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    leader: str
    members: _containers.RepeatedCompositeFieldContainer[QuorumMember]
    warning: str
    def __init__(self, leader: _Optional[str] = ..., members: _Optional[_Iterable[_Union[QuorumMember, _Mapping]]] = ..., warning: _Optional[str] = ...) -> None: ...

class KeptAsideRequest(_message.Message):
    __slots__ = ("action", "id")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    action: str
    id: str
    def __init__(self, action: _Optional[str] = ..., id: _Optional[str] = ...) -> None: ...

class KeptAsideResponse(_message.Message):
    __slots__ = ("rows", "unanswered")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedScalarFieldContainer[str]
    unanswered: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rows: _Optional[_Iterable[str]] = ..., unanswered: _Optional[_Iterable[str]] = ...) -> None: ...

class RestartLinkRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RestartLinkResponse(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class TransferLeaderRequest(_message.Message):
    __slots__ = ("vhost", "name", "member", "deadline_ms")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    member: str
    deadline_ms: int
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ..., member: _Optional[str] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class TransferLeaderResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RebalanceLeadersRequest(_message.Message):
    __slots__ = ("queues", "deadline_ms")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    queues: QueueSelection
    deadline_ms: int
    def __init__(self, queues: _Optional[_Union[QueueSelection, _Mapping]] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class LeaderCount(_message.Message):
    __slots__ = ("member", "leaders")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    member: str
    leaders: int
    def __init__(self, member: _Optional[str] = ..., leaders: _Optional[int] = ...) -> None: ...

class RebalanceLeadersResponse(_message.Message):
    __slots__ = ("moved", "left", "counts")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    moved: int
    left: int
    counts: _containers.RepeatedCompositeFieldContainer[LeaderCount]
    def __init__(self, moved: _Optional[int] = ..., left: _Optional[int] = ..., counts: _Optional[_Iterable[_Union[LeaderCount, _Mapping]]] = ...) -> None: ...

class CheckQuorumRequest(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: str
    def __init__(self, member: _Optional[str] = ...) -> None: ...

class QueueName(_message.Message):
    __slots__ = ("vhost", "name", "reason")
    VHOST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    vhost: str
    name: str
    reason: str
    def __init__(self, vhost: _Optional[str] = ..., name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CheckQuorumResponse(_message.Message):
    __slots__ = ("critical", "syncing")
    CRITICAL_FIELD_NUMBER: _ClassVar[int]
    SYNCING_FIELD_NUMBER: _ClassVar[int]
    critical: _containers.RepeatedCompositeFieldContainer[QueueName]
    syncing: _containers.RepeatedCompositeFieldContainer[QueueName]
    def __init__(self, critical: _Optional[_Iterable[_Union[QueueName, _Mapping]]] = ..., syncing: _Optional[_Iterable[_Union[QueueName, _Mapping]]] = ...) -> None: ...
