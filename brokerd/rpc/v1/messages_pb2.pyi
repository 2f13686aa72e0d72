from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Properties(_message.Message):
    __slots__ = ("content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id", "raw", "raw_headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class RawEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_ENCODING_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_MODE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_FIELD_NUMBER: _ClassVar[int]
    EXPIRATION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    APP_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    RAW_HEADERS_FIELD_NUMBER: _ClassVar[int]
    content_type: str
    content_encoding: str
    headers: _containers.MessageMap[str, Value]
    delivery_mode: int
    priority: int
    correlation_id: str
    reply_to: str
    expiration: str
    message_id: str
    timestamp: int
    type: str
    user_id: str
    app_id: str
    cluster_id: str
    raw: _containers.ScalarMap[str, bytes]
    raw_headers: _containers.RepeatedCompositeFieldContainer[RawField]
    def __init__(self, content_type: _Optional[str] = ..., content_encoding: _Optional[str] = ..., headers: _Optional[_Mapping[str, Value]] = ..., delivery_mode: _Optional[int] = ..., priority: _Optional[int] = ..., correlation_id: _Optional[str] = ..., reply_to: _Optional[str] = ..., expiration: _Optional[str] = ..., message_id: _Optional[str] = ..., timestamp: _Optional[int] = ..., type: _Optional[str] = ..., user_id: _Optional[str] = ..., app_id: _Optional[str] = ..., cluster_id: _Optional[str] = ..., raw: _Optional[_Mapping[str, bytes]] = ..., raw_headers: _Optional[_Iterable[_Union[RawField, _Mapping]]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("text", "integer", "number", "boolean", "binary", "list", "table")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    text: str
    integer: int
    number: float
    boolean: bool
    binary: bytes
    list: List
    table: Table
    def __init__(self, text: _Optional[str] = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., boolean: _Optional[bool] = ..., binary: _Optional[bytes] = ..., list: _Optional[_Union[List, _Mapping]] = ..., table: _Optional[_Union[Table, _Mapping]] = ...) -> None: ...

class List(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("fields", "raw_fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELDS_FIELD_NUMBER: _ClassVar[int]
    fields: _containers.MessageMap[str, Value]
    raw_fields: _containers.RepeatedCompositeFieldContainer[RawField]
    def __init__(self, fields: _Optional[_Mapping[str, Value]] = ..., raw_fields: _Optional[_Iterable[_Union[RawField, _Mapping]]] = ...) -> None: ...

class RawField(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    value: Value
    def __init__(self, name: _Optional[bytes] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("publications",)
    PUBLICATIONS_FIELD_NUMBER: _ClassVar[int]
    publications: _containers.RepeatedCompositeFieldContainer[Publication]
    def __init__(self, publications: _Optional[_Iterable[_Union[Publication, _Mapping]]] = ...) -> None: ...

class Publication(_message.Message):
    __slots__ = ("sequence", "exchange", "routing_key", "properties", "body", "mandatory", "raw_exchange", "raw_routing_key")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    MANDATORY_FIELD_NUMBER: _ClassVar[int]
    RAW_EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    RAW_ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    exchange: str
    routing_key: str
    properties: Properties
    body: bytes
    mandatory: bool
    raw_exchange: bytes
    raw_routing_key: bytes
    def __init__(self, sequence: _Optional[int] = ..., exchange: _Optional[str] = ..., routing_key: _Optional[str] = ..., properties: _Optional[_Union[Properties, _Mapping]] = ..., body: _Optional[bytes] = ..., mandatory: _Optional[bool] = ..., raw_exchange: _Optional[bytes] = ..., raw_routing_key: _Optional[bytes] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("confirmed", "rejected", "returned")
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    confirmed: _containers.RepeatedCompositeFieldContainer[SequenceRange]
    rejected: _containers.RepeatedCompositeFieldContainer[SequenceRange]
    returned: _containers.RepeatedCompositeFieldContainer[Returned]
    def __init__(self, confirmed: _Optional[_Iterable[_Union[SequenceRange, _Mapping]]] = ..., rejected: _Optional[_Iterable[_Union[SequenceRange, _Mapping]]] = ..., returned: _Optional[_Iterable[_Union[Returned, _Mapping]]] = ...) -> None: ...

class SequenceRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class Returned(_message.Message):
    __slots__ = ("sequence", "reply_code", "reply_text")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPLY_CODE_FIELD_NUMBER: _ClassVar[int]
    REPLY_TEXT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reply_code: int
    reply_text: str
    def __init__(self, sequence: _Optional[int] = ..., reply_code: _Optional[int] = ..., reply_text: _Optional[str] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("subscribe", "credit", "settle", "withdraw", "drain", "cancel")
    SUBSCRIBE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    subscribe: Subscribe
    credit: int
    settle: Settlement
    withdraw: Withdraw
    drain: Drain
    cancel: Cancel
    def __init__(self, subscribe: _Optional[_Union[Subscribe, _Mapping]] = ..., credit: _Optional[int] = ..., settle: _Optional[_Union[Settlement, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("queue", "consumer_tag", "auto_acknowledge", "credit", "priority", "raw_queue", "declare", "bindings")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    AUTO_ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RAW_QUEUE_FIELD_NUMBER: _ClassVar[int]
    DECLARE_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    consumer_tag: str
    auto_acknowledge: bool
    credit: int
    priority: int
    raw_queue: bytes
    declare: QueueDeclaration
    bindings: _containers.RepeatedCompositeFieldContainer[Binding]
    def __init__(self, queue: _Optional[str] = ..., consumer_tag: _Optional[str] = ..., auto_acknowledge: _Optional[bool] = ..., credit: _Optional[int] = ..., priority: _Optional[int] = ..., raw_queue: _Optional[bytes] = ..., declare: _Optional[_Union[QueueDeclaration, _Mapping]] = ..., bindings: _Optional[_Iterable[_Union[Binding, _Mapping]]] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Settlement(_message.Message):
    __slots__ = ("outcome", "delivery_tags", "multiple", "reason")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACCEPT: _ClassVar[Settlement.Outcome]
        REJECT: _ClassVar[Settlement.Outcome]
        REQUEUE: _ClassVar[Settlement.Outcome]
    ACCEPT: Settlement.Outcome
    REJECT: Settlement.Outcome
    REQUEUE: Settlement.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_TAGS_FIELD_NUMBER: _ClassVar[int]
    MULTIPLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    outcome: Settlement.Outcome
    delivery_tags: _containers.RepeatedScalarFieldContainer[int]
    multiple: bool
    reason: str
    def __init__(self, outcome: _Optional[_Union[Settlement.Outcome, str]] = ..., delivery_tags: _Optional[_Iterable[int]] = ..., multiple: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("deliveries", "cancelled", "subscribed", "withdrawn", "drained", "cancel_ok")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_OK_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivered]
    cancelled: str
    subscribed: Subscribed
    withdrawn: Withdrawn
    drained: Drained
    cancel_ok: CancelOk
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivered, _Mapping]]] = ..., cancelled: _Optional[str] = ..., subscribed: _Optional[_Union[Subscribed, _Mapping]] = ..., withdrawn: _Optional[_Union[Withdrawn, _Mapping]] = ..., drained: _Optional[_Union[Drained, _Mapping]] = ..., cancel_ok: _Optional[_Union[CancelOk, _Mapping]] = ...) -> None: ...

class Subscribed(_message.Message):
    __slots__ = ("queue", "consumer_tag", "raw_queue")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TAG_FIELD_NUMBER: _ClassVar[int]
    RAW_QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    consumer_tag: str
    raw_queue: bytes
    def __init__(self, queue: _Optional[str] = ..., consumer_tag: _Optional[str] = ..., raw_queue: _Optional[bytes] = ...) -> None: ...

class Withdrawn(_message.Message):
    __slots__ = ("credit",)
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    credit: int
    def __init__(self, credit: _Optional[int] = ...) -> None: ...

class Drained(_message.Message):
    __slots__ = ("credit",)
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    credit: int
    def __init__(self, credit: _Optional[int] = ...) -> None: ...

class CancelOk(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Delivered(_message.Message):
    __slots__ = ("delivery_tag", "exchange", "routing_key", "redelivered", "properties", "body", "raw_exchange", "raw_routing_key")
    DELIVERY_TAG_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    RAW_EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    RAW_ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    delivery_tag: int
    exchange: str
    routing_key: str
    redelivered: bool
    properties: Properties
    body: bytes
    raw_exchange: bytes
    raw_routing_key: bytes
    def __init__(self, delivery_tag: _Optional[int] = ..., exchange: _Optional[str] = ..., routing_key: _Optional[str] = ..., redelivered: _Optional[bool] = ..., properties: _Optional[_Union[Properties, _Mapping]] = ..., body: _Optional[bytes] = ..., raw_exchange: _Optional[bytes] = ..., raw_routing_key: _Optional[bytes] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("queue", "raw_queue", "count")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RAW_QUEUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    queue: str
    raw_queue: bytes
    count: int
    def __init__(self, queue: _Optional[str] = ..., raw_queue: _Optional[bytes] = ..., count: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("deliveries", "messages_left")
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_LEFT_FIELD_NUMBER: _ClassVar[int]
    deliveries: _containers.RepeatedCompositeFieldContainer[Delivered]
    messages_left: int
    def __init__(self, deliveries: _Optional[_Iterable[_Union[Delivered, _Mapping]]] = ..., messages_left: _Optional[int] = ...) -> None: ...

class QueueDeclaration(_message.Message):
    __slots__ = ("name", "raw_name", "passive", "durable", "exclusive", "auto_delete", "arguments", "raw_arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    RAW_NAME_FIELD_NUMBER: _ClassVar[int]
    PASSIVE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    AUTO_DELETE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    RAW_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    raw_name: bytes
    passive: bool
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: _containers.MessageMap[str, Value]
    raw_arguments: _containers.RepeatedCompositeFieldContainer[RawField]
    def __init__(self, name: _Optional[str] = ..., raw_name: _Optional[bytes] = ..., passive: _Optional[bool] = ..., durable: _Optional[bool] = ..., exclusive: _Optional[bool] = ..., auto_delete: _Optional[bool] = ..., arguments: _Optional[_Mapping[str, Value]] = ..., raw_arguments: _Optional[_Iterable[_Union[RawField, _Mapping]]] = ...) -> None: ...

class DeclareQueueRequest(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: QueueDeclaration
    def __init__(self, queue: _Optional[_Union[QueueDeclaration, _Mapping]] = ...) -> None: ...

class DeclareQueueResponse(_message.Message):
    __slots__ = ("name", "raw_name", "messages", "consumers")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RAW_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    raw_name: bytes
    messages: int
    consumers: int
    def __init__(self, name: _Optional[str] = ..., raw_name: _Optional[bytes] = ..., messages: _Optional[int] = ..., consumers: _Optional[int] = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    __slots__ = ("name", "raw_name", "if_unused", "if_empty")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RAW_NAME_FIELD_NUMBER: _ClassVar[int]
    IF_UNUSED_FIELD_NUMBER: _ClassVar[int]
    IF_EMPTY_FIELD_NUMBER: _ClassVar[int]
    name: str
    raw_name: bytes
    if_unused: bool
    if_empty: bool
    def __init__(self, name: _Optional[str] = ..., raw_name: _Optional[bytes] = ..., if_unused: _Optional[bool] = ..., if_empty: _Optional[bool] = ...) -> None: ...

class DeleteQueueResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class MessagesPurgeQueueRequest(_message.Message):
    __slots__ = ("name", "raw_name")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RAW_NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    raw_name: bytes
    def __init__(self, name: _Optional[str] = ..., raw_name: _Optional[bytes] = ...) -> None: ...

class MessagesPurgeQueueResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class DeclareExchangeRequest(_message.Message):
    __slots__ = ("name", "raw_name", "type", "passive", "durable", "auto_delete", "internal", "arguments", "raw_arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    RAW_NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PASSIVE_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    AUTO_DELETE_FIELD_NUMBER: _ClassVar[int]
    INTERNAL_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    RAW_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    raw_name: bytes
    type: str
    passive: bool
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: _containers.MessageMap[str, Value]
    raw_arguments: _containers.RepeatedCompositeFieldContainer[RawField]
    def __init__(self, name: _Optional[str] = ..., raw_name: _Optional[bytes] = ..., type: _Optional[str] = ..., passive: _Optional[bool] = ..., durable: _Optional[bool] = ..., auto_delete: _Optional[bool] = ..., internal: _Optional[bool] = ..., arguments: _Optional[_Mapping[str, Value]] = ..., raw_arguments: _Optional[_Iterable[_Union[RawField, _Mapping]]] = ...) -> None: ...

class DeclareExchangeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteExchangeRequest(_message.Message):
    __slots__ = ("name", "raw_name", "if_unused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RAW_NAME_FIELD_NUMBER: _ClassVar[int]
    IF_UNUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    raw_name: bytes
    if_unused: bool
    def __init__(self, name: _Optional[str] = ..., raw_name: _Optional[bytes] = ..., if_unused: _Optional[bool] = ...) -> None: ...

class DeleteExchangeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Binding(_message.Message):
    __slots__ = ("source", "raw_source", "destination", "raw_destination", "to_exchange", "routing_key", "raw_routing_key", "arguments", "raw_arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    RAW_SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    RAW_DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TO_EXCHANGE_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    RAW_ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    RAW_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    source: str
    raw_source: bytes
    destination: str
    raw_destination: bytes
    to_exchange: bool
    routing_key: str
    raw_routing_key: bytes
    arguments: _containers.MessageMap[str, Value]
    raw_arguments: _containers.RepeatedCompositeFieldContainer[RawField]
    def __init__(self, source: _Optional[str] = ..., raw_source: _Optional[bytes] = ..., destination: _Optional[str] = ..., raw_destination: _Optional[bytes] = ..., to_exchange: _Optional[bool] = ..., routing_key: _Optional[str] = ..., raw_routing_key: _Optional[bytes] = ..., arguments: _Optional[_Mapping[str, Value]] = ..., raw_arguments: _Optional[_Iterable[_Union[RawField, _Mapping]]] = ...) -> None: ...

class BindRequest(_message.Message):
    __slots__ = ("binding",)
    BINDING_FIELD_NUMBER: _ClassVar[int]
    binding: Binding
    def __init__(self, binding: _Optional[_Union[Binding, _Mapping]] = ...) -> None: ...

class BindResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnbindRequest(_message.Message):
    __slots__ = ("binding",)
    BINDING_FIELD_NUMBER: _ClassVar[int]
    binding: Binding
    def __init__(self, binding: _Optional[_Union[Binding, _Mapping]] = ...) -> None: ...

class UnbindResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
