"""Constants of AMQP 0-9-1 as RabbitMQ speaks it: frame types, reply codes, capabilities, limits.

For the amqp room and for other code that needs a reply code by name.  No behaviour lives here.
"""

from __future__ import annotations

from typing import Final

#: What a client says first (R-CON-1), and what we answer when it says anything else (R-CON-2).
PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
#: The 0-9 form of the header; a client that sends it is then treated exactly like 0-9-1.
PROTOCOL_HEADER_0_9: Final = b"AMQP\x01\x01\x00\x09"
ACCEPTED_PROTOCOL_HEADERS: Final = frozenset({PROTOCOL_HEADER, PROTOCOL_HEADER_0_9})
PROTOCOL_HEADER_SIZE: Final = 8

FRAME_METHOD: Final = 1
FRAME_HEADER: Final = 2
FRAME_BODY: Final = 3
FRAME_HEARTBEAT: Final = 8
FRAME_END: Final = 0xCE
FRAME_END_BYTE: Final = b"\xce"
FRAME_TYPES: Final = frozenset({FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT})
#: type(1) channel(2) size(4)
FRAME_HEAD_SIZE: Final = 7
#: A frame around an empty payload: head and end octet.
EMPTY_FRAME_SIZE: Final = 8
#: Clients that count the envelope wrongly survive by this slack (R-FRM-2, SEC-36).
FRAME_SIZE_SLACK: Final = 8
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
#: class(2) weight(2) body-size(8): what stands before the property flags in a content header.
CONTENT_HEADER_SIZE: Final = 12

CLASS_CONNECTION: Final = 10
CLASS_BASIC: Final = 60

REPLY_SUCCESS: Final = 200
CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
NO_CONSUMERS: Final = 313
CONNECTION_FORCED: Final = 320
INVALID_PATH: Final = 402
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

#: Reply code to the name that opens every reply text (docs/reference/rules.md §13).
REPLY_NAMES: Final[dict[int, str]] = {
    REPLY_SUCCESS: "REPLY_SUCCESS",
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    NO_CONSUMERS: "NO_CONSUMERS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}

#: Codes that end a channel only; every other error code ends the connection
#: (docs/reference/rules.md §13).
SOFT_CODES: Final = frozenset(
    {
        CONTENT_TOO_LARGE,
        NO_ROUTE,
        NO_CONSUMERS,
        ACCESS_REFUSED,
        NOT_FOUND,
        RESOURCE_LOCKED,
        PRECONDITION_FAILED,
    }
)

#: What this server can do; clients switch features on by these (R-CON-3).
SERVER_CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
)
#: What our own client role can do, told in start-ok.
CLIENT_CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "authentication_failure_close",
)

#: A shortstr has one length octet.
SHORTSTR_BYTES_MAX: Final = 255
#: Reply texts are cut to what a shortstr holds (R-CON-15).
REPLY_TEXT_BYTES_MAX: Final = SHORTSTR_BYTES_MAX
#: SEC-42; also the bound of recursion when tables are written.
TABLE_NESTING_MAX: Final = 16
#: Hard cap of a message whatever is configured (R-FRM-7, R-FRM-8).
MESSAGE_SIZE_CEILING: Final = 512 * 1024 * 1024
#: R-CON-8, R-CON-9: the smallest frame_max a peer may ask for (SEC-39: 4096 before 4.1).
FRAME_MIN_SIZE: Final = 8192
#: Channel numbers are 16 bits; channel_max 0 ("no limit") means this many.
CHANNEL_COUNT_CEILING: Final = 65535
#: After we sent connection.close the peer has min(heartbeat, this) to say close-ok (R-CON-14).
CLOSING_TIMEOUT_MS: Final = 30_000
#: Unread bytes kept while the server decides about a login or an open: enough for a client that
#: sends the rest of its handshake without waiting, small enough for a peer not yet known (SEC-31).
HANDSHAKE_UNREAD_BYTES_MAX: Final = 16 * 1024
#: Unread bytes kept while publishes are held (R-ALM-2).  The driver stops reading the socket, so
#: only what was on its way inside the process arrives here.
HELD_UNREAD_BYTES_MAX: Final = 4 * 1024 * 1024
#: Parsed basic.publish methods kept by their bytes (design/hot-path.md rule 2); the cache starts
#: anew when it is full, so hostile routing keys cost time, not memory.
PUBLISH_CACHE_ENTRIES_MAX: Final = 4096
