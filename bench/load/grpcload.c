/* amqpload grpc: one Publish call of the Messages service (protos/brokerd/rpc/v1/messages.proto) over HTTP/2.
 *
 * At most IN-FLIGHT messages are unconfirmed; --per-write N puts at most N of them into a request (100 unless
 * said otherwise), as a program would that has several at hand. --port is that of gRPC; the queue must be
 * there. HTTP/2 (RFC 9113) as far as this takes: headers as literals, both windows respected when sending and as
 * large as they can be when receiving. One message is encoded beforehand, with its number as a varint of
 * fixed length, so that the program costs next to nothing per message.
 */
#include "load.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HTTP2_DATA 0
#define HTTP2_HEADERS 1
#define HTTP2_RST_STREAM 3
#define HTTP2_SETTINGS 4
#define HTTP2_PING 6
#define HTTP2_GOAWAY 7
#define HTTP2_WINDOW_UPDATE 8
#define END_STREAM 1
#define END_HEADERS 4
#define ACK 1
#define FRAME_HEAD 9
#define FRAME_ROOM 16384      /* the largest that anybody must accept */
#define WINDOW_DEFAULT 65535
#define WINDOW_MAX 0x7FFFFFFFu
/* Handed to the socket at once: an AMQP publisher hands over all that may be in flight. */
#define WRITE_ROOM (1u << 20)
#define SEQUENCE_BYTES 5
#define RESPONSE_MAX (4u << 20)
#define REQUEST_MESSAGES 100

static struct {
    struct amqp c; /* the socket and its buffers alone */
    const struct options *o;
    struct bytes publication, request, response;
    bool is_open;
    size_t sequence_at, stamp_at, request_sent;
    int64_t window, stream_window;
    unsigned long sent, done, nacked;
    uint64_t *sent_at;
    uint8_t *is_confirmed;
    struct samples latency;
} g;

/* ---- encoding ---- */

static void put_frame(uint8_t type, uint8_t flags, uint32_t stream, const void *payload, size_t size) {
    put_u8(&g.c.out, (uint8_t)(size >> 16));
    put_u16(&g.c.out, (uint16_t)size);
    put_u8(&g.c.out, type);
    put_u8(&g.c.out, flags);
    put_u32(&g.c.out, stream);
    put_raw(&g.c.out, payload, size);
}

static void put_header(struct bytes *b, const char *name, const char *value) {
    if (strlen(name) > 126 || strlen(value) > 126) die(EXIT_USAGE, "%s is longer than 126 bytes", name);
    put_u8(b, 0); /* a literal that enters no table (RFC 7541 §6.2.2) */
    put_shortstr(b, name);
    put_shortstr(b, value);
}

static void base64(char *to, const char *text) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t size = strlen(text);
    for (size_t i = 0; i < size; i += 3) {
        uint32_t word = (uint32_t)(uint8_t)text[i] << 16;
        if (i + 1 < size) word |= (uint32_t)(uint8_t)text[i + 1] << 8;
        if (i + 2 < size) word |= (uint8_t)text[i + 2];
        for (int k = 0; k < 4; k++) *to++ = i + (size_t)k > size ? '=' : DIGITS[word >> (18 - 6 * k) & 63];
    }
    *to = 0;
}

static void put_varint(struct bytes *b, uint64_t value) {
    for (; value > 127; value >>= 7) put_u8(b, (uint8_t)(value | 128));
    put_u8(b, (uint8_t)value);
}

/* Field 1 of PublishRequest, whole: a Publication. */
static void encode_publication(void) {
    struct bytes inner = {0};
    const struct options *o = g.o;
    put_u8(&inner, 0x08); /* sequence */
    size_t sequence_at = inner.size;
    put_raw(&inner, "\x80\x80\x80\x80\0", SEQUENCE_BYTES);
    put_u8(&inner, 0x1A); /* routing_key; the exchange is the default one */
    put_shortstr(&inner, o->key);
    put_raw(&inner, "\x22\x02\x20\x02", 4); /* properties: delivery_mode 2 */
    put_u8(&inner, 0x2A);                   /* body */
    put_varint(&inner, o->size);
    size_t stamp_at = inner.size;
    for (unsigned long n = 0; n < o->size; n++) put_u8(&inner, 'x');
    put_u8(&g.publication, 0x0A);
    put_varint(&g.publication, inner.size);
    g.sequence_at = g.publication.size + sequence_at;
    g.stamp_at = g.publication.size + stamp_at;
    put_raw(&g.publication, inner.at, inner.size);
    free(inner.at);
}

static void call_publish(void) {
    char both[512], authorization[1024] = "Basic ";
    struct bytes headers = {0};
    snprintf(both, sizeof both, "%s:%s", g.o->user, g.o->password);
    base64(authorization + 6, both);
    put_raw(&g.c.out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    /* INITIAL_WINDOW_SIZE; HEADER_TABLE_SIZE 0, so that trailers come as they are */
    put_frame(HTTP2_SETTINGS, 0, 0, "\0\4\x7F\xFF\xFF\xFF\0\1\0\0\0\0", 12);
    put_frame(HTTP2_WINDOW_UPDATE, 0, 0, "\x7F\xFF\0\0", 4);
    put_header(&headers, ":method", "POST");
    put_header(&headers, ":scheme", "http");
    put_header(&headers, ":path", "/brokerd.v1.Messages/Publish");
    put_header(&headers, ":authority", "127.0.0.1");
    put_header(&headers, "content-type", "application/grpc");
    put_header(&headers, "te", "trailers");
    put_header(&headers, "authorization", authorization);
    put_header(&headers, "vhost", g.o->vhost);
    put_frame(HTTP2_HEADERS, END_HEADERS, 1, headers.at, headers.size);
    free(headers.at);
}

/* ---- sending ---- */

static void next_request(uint64_t now) {
    unsigned long room = g.o->count - g.sent, most = g.o->per_write ? g.o->per_write : REQUEST_MESSAGES;
    if (room > g.o->in_flight - (g.sent - g.done)) room = g.o->in_flight - (g.sent - g.done);
    if (room > most) room = most;
    if (!room) return;
    g.request.size = g.request_sent = 0;
    put_u8(&g.request, 0); /* gRPC: not compressed */
    put_u32(&g.request, (uint32_t)(room * g.publication.size));
    while (room--) {
        uint64_t sequence = ++g.sent;
        g.sent_at[sequence] = now;
        for (int i = 0; i < SEQUENCE_BYTES; i++)
            g.publication.at[g.sequence_at + (size_t)i] =
                (uint8_t)((sequence >> (7 * i) & 127) | (i < SEQUENCE_BYTES - 1 ? 128 : 0));
        if (g.o->size >= 8) memcpy(g.publication.at + g.stamp_at, &now, 8);
        put_raw(&g.request, g.publication.at, g.publication.size);
    }
}

static void fill(uint64_t now) {
    while (g.c.out.size < WRITE_ROOM) {
        if (g.request_sent == g.request.size) next_request(now);
        size_t left = g.request.size - g.request_sent;
        int64_t window = g.window < g.stream_window ? g.window : g.stream_window;
        if (left > FRAME_ROOM) left = FRAME_ROOM;
        if ((int64_t)left > window) left = window > 0 ? (size_t)window : 0;
        if (!left) return;
        put_frame(HTTP2_DATA, 0, 1, g.request.at + g.request_sent, left);
        g.request_sent += left;
        g.window -= (int64_t)left;
        g.stream_window -= (int64_t)left;
    }
}

/* ---- what comes ---- */

static uint64_t varint(const uint8_t **at, const uint8_t *end) {
    uint64_t value = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128)) return value;
    }
    die(EXIT_BROKER, "grpc: a number without an end");
}

static void confirm_range(const uint8_t *at, const uint8_t *end, bool is_rejected, uint64_t now) {
    uint64_t first = 0, last = 0;
    while (at < end) {
        uint64_t tag = varint(&at, end), value = varint(&at, end);
        if (tag == 0x08) first = value;
        else if (tag == 0x10) last = value;
    }
    if (!first || first > last || last > g.sent)
        die(EXIT_BROKER, "grpc: confirm of %lu to %lu, of %lu sent", (unsigned long)first, (unsigned long)last, g.sent);
    for (uint64_t n = first; n <= last; n++) {
        if (g.is_confirmed[n]) die(EXIT_BROKER, "grpc: %lu confirmed twice", (unsigned long)n);
        g.is_confirmed[n] = 1;
        g.done++;
        g.nacked += is_rejected;
        add_sample(&g.latency, now - g.sent_at[n]);
    }
}

static void on_response(const uint8_t *at, const uint8_t *end, uint64_t now) {
    while (at < end) {
        uint64_t tag = varint(&at, end), size = varint(&at, end);
        if (size > (uint64_t)(end - at)) die(EXIT_BROKER, "grpc: a field longer than its message");
        if (tag == 0x0A || tag == 0x12) confirm_range(at, at + size, tag == 0x12, now);
        at += size;
    }
}

static void on_data(const uint8_t *payload, size_t size, uint64_t now) {
    put_raw(&g.response, payload, size);
    size_t at = 0;
    while (g.response.size - at >= 5) {
        uint32_t length = get_u32(g.response.at + at + 1);
        if (g.response.at[at] || length > RESPONSE_MAX) die(EXIT_BROKER, "grpc: a response that is compressed or too long");
        if (g.response.size - at < 5 + (size_t)length) break;
        on_response(g.response.at + at + 5, g.response.at + at + 5 + length, now);
        at += 5 + (size_t)length;
    }
    memmove(g.response.at, g.response.at + at, g.response.size - at);
    g.response.size -= at;
}

static void say_why_it_ended(const char *what, const uint8_t *payload, size_t size) {
    char text[512];
    size_t n = 0;
    for (size_t i = 0; i < size && n < sizeof text - 1; i++)
        if (payload[i] >= ' ' && payload[i] < 127) text[n++] = (char)payload[i];
    text[n] = 0;
    die(EXIT_BROKER, "grpc: the broker ended the %s: %s", what, text);
}

static void on_settings(const uint8_t *payload, size_t size) {
    for (size_t at = 0; at + 6 <= size; at += 6)
        if (payload[at] == 0 && payload[at + 1] == 4)
            g.stream_window += (int64_t)get_u32(payload + at + 2) - WINDOW_DEFAULT;
    put_frame(HTTP2_SETTINGS, ACK, 0, NULL, 0);
}

/* Of one frame; false if it is not there as a whole. */
static bool next_frame(uint64_t now) {
    const uint8_t *at = g.c.in + g.c.head;
    size_t have = g.c.tail - g.c.head;
    if (have < FRAME_HEAD) return false;
    size_t size = (size_t)at[0] << 16 | (size_t)at[1] << 8 | at[2];
    if (size > FRAME_ROOM) die(EXIT_BROKER, "grpc: frame of %zu bytes, more than %d", size, FRAME_ROOM);
    if (have < FRAME_HEAD + size) return false;
    uint8_t type = at[3], flags = at[4];
    const uint8_t *payload = at + FRAME_HEAD;
    g.c.head += FRAME_HEAD + size;
    if (type == HTTP2_DATA) on_data(payload, size, now);
    else if (type == HTTP2_SETTINGS && !(flags & ACK)) on_settings(payload, size);
    else if (type == HTTP2_PING && !(flags & ACK)) put_frame(HTTP2_PING, ACK, 0, payload, size);
    else if (type == HTTP2_WINDOW_UPDATE && size == 4)
        *(get_u32(at + 5) & WINDOW_MAX ? &g.stream_window : &g.window) += get_u32(payload) & WINDOW_MAX;
    else if (type == HTTP2_HEADERS && !(flags & END_STREAM)) g.is_open = true;
    else if (type == HTTP2_GOAWAY) say_why_it_ended("connection", payload, size);
    else if (type == HTTP2_RST_STREAM || (type == HTTP2_HEADERS && flags & END_STREAM))
        say_why_it_ended("call", payload, size);
    return true;
}

void grpc_run(const struct options *o) {
    g.o = o;
    g.window = g.stream_window = WINDOW_DEFAULT;
    g.sent_at = zeroed(o->count + 1, sizeof *g.sent_at);
    g.is_confirmed = zeroed(o->count + 1, 1);
    amqp_connect(&g.c, "grpc", o->host, o->port, (int)o->timeout);
    encode_publication();
    call_publish();
    /* Logging in, as everywhere, is not measured: the call is open when its headers are answered. */
    for (uint64_t since = now_us(); !g.is_open;) {
        amqp_pump(&g.c, false, true);
        struct pollfd p = {.fd = g.c.fd, .events = POLLIN};
        if (poll(&p, 1, 200) > 0) amqp_pump(&g.c, true, false);
        while (next_frame(since)) {}
        if (now_us() - since > o->timeout * 1000000u) die(EXIT_TIMEOUT, "grpc: the call is not answered");
    }
    steady_begin(o);
    uint64_t begin = now_us(), now = begin, last_progress = begin;
    while (g.done < o->count) {
        /* Until the windows, what may be in flight, or the socket takes no more. */
        bool waiting = false;
        for (fill(now); g.c.out.size > 0 && !waiting; fill(now))
            waiting = !(amqp_pump(&g.c, false, true) && !g.c.out.size);
        struct pollfd p = {.fd = g.c.fd, .events = (short)(POLLIN | (waiting ? POLLOUT : 0))};
        int ready = poll(&p, 1, 200);
        now = now_us();
        if (ready > 0) last_progress = now;
        if (p.revents & (POLLIN | POLLHUP | POLLERR)) amqp_pump(&g.c, true, false);
        while (next_frame(now)) {}
        if (now - last_progress > o->timeout * 1000000u)
            die(EXIT_TIMEOUT, "grpc: no progress for %lu s: %lu sent, %lu confirmed of %lu", o->timeout, g.sent, g.done, o->count);
    }
    double seconds = (double)(now_us() - begin) / 1e6;
    printf("{\"messages\": %lu, \"seconds\": %.4f, \"rate\": %.1f, \"client_cpu_us\": %.3f, \"nacked\": %lu", o->count,
           seconds, (double)o->count / seconds, steady_cpu_us() / (double)o->count, g.nacked);
    print_samples("", &g.latency);
    printf("}\n");
    fflush(stdout);
}
