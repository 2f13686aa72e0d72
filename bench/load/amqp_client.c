/* See amqp_client.h. Frame layout and methods: AMQP 0-9-1 §2.3, §4.2. */
#include "amqp_client.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_ROOM (1u << 20)

void die(int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "amqpload: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(status);
}

/* ---- encoding ---- */

void put_raw(struct bytes *b, const void *data, size_t size) {
    if (b->size + size > b->room) {
        b->room = (b->size + size) * 2 + 256;
        b->at = realloc(b->at, b->room);
        if (!b->at) die(1, "out of memory");
    }
    if (size) memcpy(b->at + b->size, data, size);
    b->size += size;
}

void put_u8(struct bytes *b, uint8_t value) { put_raw(b, &value, 1); }

static void put_number(struct bytes *b, uint64_t value, int size) {
    uint8_t raw[8];
    for (int i = 0; i < size; i++) raw[i] = (uint8_t)(value >> (8 * (size - 1 - i)));
    put_raw(b, raw, (size_t)size);
}
void put_u16(struct bytes *b, uint16_t value) { put_number(b, value, 2); }
void put_u32(struct bytes *b, uint32_t value) { put_number(b, value, 4); }
void put_u64(struct bytes *b, uint64_t value) { put_number(b, value, 8); }

void put_shortstr(struct bytes *b, const char *text) {
    size_t size = strlen(text);
    if (size > 255) die(EXIT_USAGE, "name of %zu bytes: at most 255 are possible", size);
    put_u8(b, (uint8_t)size);
    put_raw(b, text, size);
}

static uint64_t get_number(const uint8_t *at, int size) {
    uint64_t value = 0;
    for (int i = 0; i < size; i++) value = value << 8 | at[i];
    return value;
}
uint64_t get_u64(const uint8_t *at) { return get_number(at, 8); }
uint32_t get_u32(const uint8_t *at) { return (uint32_t)get_number(at, 4); }

size_t frame_begin(struct bytes *b, uint8_t type, uint16_t channel) {
    put_u8(b, type);
    put_u16(b, channel);
    put_u32(b, 0);
    return b->size;
}

void frame_end(struct bytes *b, size_t start) {
    uint32_t size = (uint32_t)(b->size - start);
    for (int i = 0; i < 4; i++) b->at[start - 4 + i] = (uint8_t)(size >> (8 * (3 - i)));
    put_u8(b, 0xCE);
}

size_t method_begin(struct bytes *b, uint16_t channel, uint32_t method) {
    size_t start = frame_begin(b, FRAME_METHOD, channel);
    put_u32(b, method);
    return start;
}

/* ---- the socket ---- */

bool amqp_pump(struct amqp *c, bool readable, bool writable) {
    bool moved = false;
    if (writable && c->sent < c->out.size) {
        ssize_t n = send(c->fd, c->out.at + c->sent, c->out.size - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN && errno != EINTR && !readable)
            die(EXIT_BROKER, "%s: writing: %s", c->role, strerror(errno));
        if (n > 0) {
            c->sent += (size_t)n;
            moved = true;
        }
        if (c->sent == c->out.size) c->sent = c->out.size = 0;
    }
    if (readable) {
        if (c->head == c->tail) c->head = c->tail = 0;
        if (c->in_room - c->tail < READ_ROOM / 4 && c->head) {
            memmove(c->in, c->in + c->head, c->tail - c->head);
            c->tail -= c->head;
            c->head = 0;
        }
        ssize_t n = recv(c->fd, c->in + c->tail, c->in_room - c->tail, 0);
        if (n == 0) die(EXIT_BROKER, "%s: the broker closed the connection", c->role);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            die(EXIT_BROKER, "%s: reading: %s", c->role, strerror(errno));
        if (n > 0) {
            c->tail += (size_t)n;
            moved = true;
        }
    }
    return moved;
}

bool amqp_next(struct amqp *c, struct frame *frame) {
    size_t have = c->tail - c->head;
    const uint8_t *at = c->in + c->head;
    if (have >= 8 && memcmp(at, "AMQP", 4) == 0)
        die(EXIT_BROKER, "%s: the broker speaks another protocol version (%d-%d-%d-%d)", c->role,
            at[4], at[5], at[6], at[7]);
    if (have < 7) return false;
    uint32_t size = get_u32(at + 3);
    if (size > c->frame_max - FRAME_OVERHEAD)
        die(EXIT_BROKER, "%s: frame of %u bytes, more than frame-max %u", c->role, size, c->frame_max);
    if (have < (size_t)size + FRAME_OVERHEAD) return false;
    if (at[7 + size] != 0xCE) die(EXIT_BROKER, "%s: frame without its end mark", c->role);
    frame->type = at[0];
    frame->channel = (uint16_t)get_number(at + 1, 2);
    frame->size = size;
    frame->payload = at + 7;
    c->head += size + FRAME_OVERHEAD;
    return true;
}

uint32_t amqp_method(struct amqp *c, const struct frame *frame) {
    if (frame->type != FRAME_METHOD || frame->size < 4) return 0;
    uint32_t method = get_u32(frame->payload);
    if (method == CONNECTION_CLOSE || method == CHANNEL_CLOSE) {
        if (frame->size < 7 || frame->size < 7u + frame->payload[6])
            die(EXIT_BROKER, "%s: close method of %u bytes", c->role, frame->size);
        die(EXIT_BROKER, "%s: the broker closed the %s: %u %.*s", c->role,
            method == CHANNEL_CLOSE ? "channel" : "connection",
            (unsigned)get_number(frame->payload + 4, 2), (int)frame->payload[6],
            (const char *)frame->payload + 7);
    }
    return method;
}

struct frame amqp_call(struct amqp *c, uint32_t expected) {
    struct frame frame;
    for (;;) {
        while (amqp_next(c, &frame)) {
            uint32_t method = amqp_method(c, &frame);
            if (method == expected) return frame;
            if (frame.type == FRAME_HEARTBEAT || method == CONNECTION_BLOCKED ||
                method == CONNECTION_UNBLOCKED)
                continue;
            die(EXIT_BROKER, "%s: expected method %u.%u, got frame type %u method %u.%u", c->role,
                expected >> 16, expected & 0xFFFF, frame.type, method >> 16, method & 0xFFFF);
        }
        bool waiting = c->sent < c->out.size;
        struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (waiting ? POLLOUT : 0))};
        int ready = poll(&p, 1, c->timeout_s * 1000);
        if (ready == 0)
            die(EXIT_TIMEOUT, "%s: no answer to method %u in %d s", c->role, expected, c->timeout_s);
        amqp_pump(c, p.revents & (POLLIN | POLLHUP | POLLERR), p.revents & POLLOUT);
    }
}

/* ---- set-up ---- */

static int connect_to(const char *role, const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list, *one;
    int error = getaddrinfo(host, port, &hints, &list), fd = -1;
    if (error) die(EXIT_BROKER, "%s: %s port %s: %s", role, host, port, gai_strerror(error));
    for (one = list; one; one = one->ai_next) {
        fd = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
        if (fd >= 0 && connect(fd, one->ai_addr, one->ai_addrlen) == 0) break;
        error = errno;
        if (fd >= 0) close(fd);
        fd = -1;
    }
    freeaddrinfo(list);
    if (fd < 0) die(EXIT_BROKER, "%s: cannot connect to %s port %s: %s", role, host, port, strerror(error));
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return fd;
}

void amqp_connect(struct amqp *c, const char *role, const char *host, const char *port, int timeout_s) {
    memset(c, 0, sizeof *c);
    c->role = role;
    c->timeout_s = timeout_s;
    c->frame_max = FRAME_MAX_WANTED;
    c->in_room = 2 * READ_ROOM;
    c->in = malloc(c->in_room);
    if (!c->in) die(1, "out of memory");
    c->fd = connect_to(role, host, port);
}

void amqp_open(struct amqp *c, const char *role, const char *host, const char *port,
               const char *user, const char *password, const char *vhost, int timeout_s) {
    amqp_connect(c, role, host, port, timeout_s);
    put_raw(&c->out, "AMQP\0\0\x09\x01", 8);
    amqp_call(c, CONNECTION_START);
    size_t start = method_begin(&c->out, 0, 0x000A000B); /* start-ok */
    put_u32(&c->out, 0);                                 /* client properties: an empty table */
    put_shortstr(&c->out, "PLAIN");
    put_u32(&c->out, (uint32_t)(2 + strlen(user) + strlen(password)));
    put_u8(&c->out, 0);
    put_raw(&c->out, user, strlen(user));
    put_u8(&c->out, 0);
    put_raw(&c->out, password, strlen(password));
    put_shortstr(&c->out, "en_US");
    frame_end(&c->out, start);

    struct frame tune = amqp_call(c, CONNECTION_TUNE);
    if (tune.size < 12) die(EXIT_BROKER, "%s: tune of %u bytes", role, tune.size);
    uint16_t channel_max = (uint16_t)get_number(tune.payload + 4, 2);
    uint32_t offered = get_u32(tune.payload + 6);
    if (offered && offered < c->frame_max) c->frame_max = offered;
    if (c->frame_max < 4096) die(EXIT_BROKER, "%s: frame-max %u, below 4096", role, offered);
    start = method_begin(&c->out, 0, 0x000A001F); /* tune-ok; no heartbeats: runs are short */
    put_u16(&c->out, channel_max);
    put_u32(&c->out, c->frame_max);
    put_u16(&c->out, 0);
    frame_end(&c->out, start);
    start = method_begin(&c->out, 0, 0x000A0028); /* open */
    put_shortstr(&c->out, vhost);
    put_u8(&c->out, 0);
    put_u8(&c->out, 0);
    frame_end(&c->out, start);
    amqp_call(c, CONNECTION_OPEN_OK);
    start = method_begin(&c->out, 1, 0x0014000A);
    put_u8(&c->out, 0);
    frame_end(&c->out, start);
    amqp_call(c, CHANNEL_OPEN_OK);
}

void amqp_close(struct amqp *c) {
    size_t start = method_begin(&c->out, 0, CONNECTION_CLOSE);
    put_u16(&c->out, 200);
    put_shortstr(&c->out, "done");
    put_u16(&c->out, 0);
    put_u16(&c->out, 0);
    frame_end(&c->out, start);
    struct frame frame;
    for (int rounds = 0; rounds < 100000; rounds++) { /* deliveries may still be on their way */
        while (amqp_next(c, &frame))
            if (frame.type == FRAME_METHOD && frame.size >= 4 &&
                get_u32(frame.payload) == CONNECTION_CLOSE_OK) {
                close(c->fd);
                free(c->in);
                free(c->out.at);
                memset(&c->out, 0, sizeof c->out);
                return;
            }
        bool waiting = c->sent < c->out.size;
        struct pollfd p = {.fd = c->fd, .events = (short)(POLLIN | (waiting ? POLLOUT : 0))};
        if (poll(&p, 1, c->timeout_s * 1000) == 0) die(EXIT_TIMEOUT, "%s: no close-ok", c->role);
        amqp_pump(c, p.revents & (POLLIN | POLLHUP | POLLERR), p.revents & POLLOUT);
    }
    die(EXIT_BROKER, "%s: no close-ok among 100000 reads", c->role);
}
