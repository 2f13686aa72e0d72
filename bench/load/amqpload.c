/* amqpload: a load program for AMQP 0-9-1 brokers that is light enough not to hide the broker.
 *
 *   amqpload publish   publish COUNT messages with confirms, at most IN-FLIGHT unconfirmed
 *   amqpload consume   receive COUNT messages and acknowledge them
 *   amqpload both      the two at once, on two connections
 *   amqpload get       take COUNT messages with basic.get, one after the other; --ack none keeps them
 *   amqpload delete    delete the queue
 *   amqpload publishers|paced|consumers|rpc|churn   many connections: see many.c
 *   amqpload grpc      publish over the gRPC service Messages: see grpcload.c
 *
 * Messages go out up to 256 KiB per write; --per-write 1 makes it one write per message, as most client
 * libraries do. One thread, one connection per role, frames encoded beforehand. Prints one line of JSON; rates are
 * messages per second, times in microseconds: `publish` measures publish to confirm, `both` also
 * publish to delivery. Exit status: 0, 2 the broker refused, 3 no progress, 64 wrong usage.
 */
#include "load.h"

#include <getopt.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define COUNT_MAX 50000000ul
#define COUNT_DEFAULT 10000ul /* of many connections: until their time is over */
#define SIZE_MAX_BYTES (16ul << 20)
#define IN_FLIGHT_MAX 1000000ul
#define CONNECTIONS_MAX 20000ul
#define WRITES_PER_TURN 1024     /* then confirms are read */
#define BLOCK_BYTES (256u << 10) /* pre-encoded messages handed to the socket at once */

uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static double cpu_us_before;

static double used_us(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

void steady_begin(const struct options *o) {
    if (o->announce) {
        printf("begin\n");
        fflush(stdout);
    }
    cpu_us_before = used_us();
}

double steady_cpu_us(void) { return used_us() - cpu_us_before; }

/* ---- latencies ---- */

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void print_samples(const char *prefix, struct samples *s) {
    if (!s->count) return;
    qsort(s->us, s->count, sizeof *s->us, by_value);
    double sum = 0;
    for (size_t i = 0; i < s->count; i++) sum += s->us[i];
    printf(", \"%smean_us\": %.1f, \"%sp50_us\": %u, \"%sp99_us\": %u, \"%smax_us\": %u", prefix,
           sum / (double)s->count, prefix, s->us[s->count / 2], prefix,
           s->us[(size_t)((double)s->count * 0.99)], prefix, s->us[s->count - 1]);
}

void *zeroed(size_t count, size_t size) {
    void *at = calloc(count ? count : 1, size);
    if (!at) die(1, "out of memory");
    return at;
}

void add_sample(struct samples *s, uint64_t us) {
    if (s->count == s->room) {
        s->room = s->room * 2 + 4096;
        s->us = realloc(s->us, s->room * sizeof *s->us);
        if (!s->us) die(1, "out of memory");
    }
    s->us[s->count++] = us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

/* ---- publishing ---- */

struct publisher {
    struct amqp c;
    const struct options *o;
    uint8_t *block;              /* copies of one encoded message */
    size_t message_bytes, block_messages, stamp_at; /* stamp_at: of the body in a message */
    size_t pending, offset;      /* bytes of the block to write, from offset */
    unsigned long sent, done, nacked, lowest;
    uint32_t *sent_us;           /* by delivery tag: when, since begin */
    uint8_t *is_confirmed;       /* by delivery tag */
    struct samples latency;
    uint64_t begin_us;
};

void encode_message(struct bytes *b, const struct options *o, const char *key, const char *reply_to,
                    uint32_t frame_max, size_t *stamp_at) {
    size_t start = method_begin(b, 1, 0x003C0028); /* basic.publish */
    put_u16(b, 0);
    put_shortstr(b, o->exchange);
    put_shortstr(b, key);
    put_u8(b, 0);
    frame_end(b, start);
    start = frame_begin(b, FRAME_HEADER, 1);
    put_u16(b, 60);
    put_u16(b, 0);
    put_u64(b, o->size);
    put_u16(b, reply_to ? 0x1200 : 0x1000); /* delivery-mode, reply-to */
    put_u8(b, o->transient ? 1 : 2);
    if (reply_to) put_shortstr(b, reply_to);
    frame_end(b, start);
    *stamp_at = b->size + 7;
    for (unsigned long left = o->size; left;) {
        uint8_t part[4096];
        unsigned long body = left < frame_max - FRAME_OVERHEAD ? left : frame_max - FRAME_OVERHEAD;
        start = frame_begin(b, FRAME_BODY, 1);
        memset(part, 'x', sizeof part);
        for (unsigned long n = body; n;) {
            unsigned long piece = n < sizeof part ? n : sizeof part;
            put_raw(b, part, piece);
            n -= piece;
        }
        frame_end(b, start);
        left -= body;
    }
}

void select_confirms(struct amqp *c) {
    size_t start = method_begin(&c->out, 1, 0x0055000A); /* confirm.select */
    put_u8(&c->out, 0);
    frame_end(&c->out, start);
    amqp_call(c, CONFIRM_SELECT_OK);
}

static void publisher_prepare(struct publisher *p, const struct options *o) {
    struct bytes one = {0}, all = {0};
    p->o = o;
    encode_message(&one, o, o->key, NULL, p->c.frame_max, &p->stamp_at);
    p->message_bytes = one.size;
    p->block_messages = BLOCK_BYTES / one.size ? BLOCK_BYTES / one.size : 1;
    for (size_t i = 0; i < p->block_messages; i++) put_raw(&all, one.at, one.size);
    free(one.at);
    p->block = all.at;
    p->sent_us = zeroed(o->count + 1, sizeof *p->sent_us);
    p->is_confirmed = zeroed(o->count + 2, 1);
    p->latency.us = zeroed(o->count, sizeof *p->latency.us);
    p->lowest = 1;
    if (!o->no_confirm) select_confirms(&p->c);
}

static void confirm_one(struct publisher *p, uint64_t tag, uint64_t now, bool nack) {
    if (p->is_confirmed[tag]) die(EXIT_BROKER, "publisher: tag %lu confirmed twice", (unsigned long)tag);
    p->is_confirmed[tag] = 1;
    p->nacked += nack;
    p->latency.us[p->done++] = (uint32_t)(now - p->begin_us) - p->sent_us[tag];
}

static void publisher_frame(struct publisher *p, const struct frame *f, uint64_t now) {
    uint32_t method = amqp_method(&p->c, f);
    if (method != BASIC_ACK && method != BASIC_NACK) return;
    if (f->size < 13) die(EXIT_BROKER, "publisher: confirm of %u bytes", f->size);
    uint64_t tag = get_u64(f->payload + 4);
    bool multiple = f->payload[12] & 1;
    if (tag == 0 && multiple) tag = p->sent;
    if (tag == 0 || tag > p->sent) die(EXIT_BROKER, "publisher: confirm of tag %lu, never sent", (unsigned long)tag);
    if (!multiple) confirm_one(p, tag, now, method == BASIC_NACK);
    for (unsigned long t = p->lowest; multiple && t <= tag; t++)
        if (!p->is_confirmed[t]) confirm_one(p, t, now, method == BASIC_NACK);
    while (p->lowest <= p->sent && p->is_confirmed[p->lowest]) p->lowest++;
}

/* Takes the next messages of the block if all before it were written and the window allows. */
static void publisher_fill(struct publisher *p, uint64_t now) {
    if (p->pending || p->sent == p->o->count) return;
    unsigned long room = p->o->count - p->sent;
    if (!p->o->no_confirm && room > p->o->in_flight - (p->sent - p->done))
        room = p->o->in_flight - (p->sent - p->done);
    if (p->o->rate) { /* open loop at a given rate */
        unsigned long due = (unsigned long)((double)(now - p->begin_us) * (double)p->o->rate / 1e6) + 1;
        if (due <= p->sent) return;
        if (room > due - p->sent) room = due - p->sent;
    }
    if (room > p->block_messages) room = p->block_messages;
    if (p->o->per_write && room > p->o->per_write) room = p->o->per_write;
    if (!room) return;
    for (unsigned long i = 0; i < room; i++) {
        p->sent_us[++p->sent] = (uint32_t)(now - p->begin_us);
        if (p->o->size >= 8) memcpy(p->block + i * p->message_bytes + p->stamp_at, &now, 8);
    }
    p->offset = 0;
    p->pending = room * p->message_bytes;
    if (p->o->no_confirm) p->done = p->sent;
}

/* The block goes to the socket without a copy: it is lent to the connection as its output. */
static bool publisher_write(struct publisher *p) {
    if (!p->pending) return false;
    struct bytes own = p->c.out;
    size_t own_sent = p->c.sent;
    if (own.size) return amqp_pump(&p->c, false, true);
    p->c.out = (struct bytes){.at = p->block, .size = p->offset + p->pending};
    p->c.sent = p->offset;
    size_t before = p->pending;
    bool moved = amqp_pump(&p->c, false, true);
    if (p->c.out.size == 0) p->pending = 0;
    else {
        p->pending = p->c.out.size - p->c.sent;
        p->offset = p->c.sent;
    }
    p->c.out = own;
    p->c.sent = own_sent;
    return moved && p->pending < before;
}

/* ---- consuming ---- */

struct consumer {
    struct amqp c;
    const struct options *o;
    unsigned long received, redelivered, ack_every, unacked;
    uint64_t tag, body_left;
    bool in_content, has_stamp;
    struct samples latency;
};

static void ack_up_to(struct consumer *k, uint64_t tag, bool multiple) {
    size_t start = method_begin(&k->c.out, 1, BASIC_ACK);
    put_u64(&k->c.out, tag);
    put_u8(&k->c.out, multiple);
    frame_end(&k->c.out, start);
    k->unacked = 0;
}

static void message_complete(struct consumer *k) {
    k->in_content = false;
    k->received++;
    if (!k->ack_every) return;
    k->unacked++;
    if (k->ack_every == 1) ack_up_to(k, k->tag, false);
    else if (k->unacked == k->ack_every || k->received == k->o->count) ack_up_to(k, k->tag, true);
}

static void consumer_body(struct consumer *k, const struct frame *f, uint64_t now) {
    if (!k->in_content || f->size > k->body_left) die(EXIT_BROKER, "consumer: unexpected body frame");
    if (k->has_stamp && f->size >= 8) {
        uint64_t stamp;
        memcpy(&stamp, f->payload, 8);
        if (stamp <= now && now - stamp < 3600000000u) k->latency.us[k->latency.count++] = (uint32_t)(now - stamp);
    }
    k->has_stamp = false;
    k->body_left -= f->size;
    if (!k->body_left) message_complete(k);
}

static void consumer_frame(struct consumer *k, const struct frame *f, uint64_t now) {
    if (f->type == FRAME_BODY) {
        consumer_body(k, f, now);
    } else if (f->type == FRAME_HEADER) {
        if (!k->in_content || f->size < 14) die(EXIT_BROKER, "consumer: unexpected header frame");
        k->body_left = get_u64(f->payload + 4);
        k->has_stamp = k->body_left >= 8;
        if (!k->body_left) message_complete(k);
    } else if (amqp_method(&k->c, f) == BASIC_DELIVER) {
        uint32_t at = 4u + 1u + (f->size > 4 ? f->payload[4] : 0);
        if (k->in_content || f->size < at + 9) die(EXIT_BROKER, "consumer: unexpected deliver");
        k->tag = get_u64(f->payload + at);
        k->redelivered += f->payload[at + 8] & 1;
        k->in_content = true;
    }
}

static void consumer_prepare(struct consumer *k, const struct options *o) {
    k->o = o;
    if (strcmp(o->ack, "each") == 0) k->ack_every = 1;
    else if (strncmp(o->ack, "multiple:", 9) == 0) k->ack_every = strtoul(o->ack + 9, NULL, 10);
    k->latency.us = zeroed(o->count + o->prefetch + 65536, sizeof *k->latency.us);
    struct bytes *out = &k->c.out;
    size_t start = method_begin(out, 1, 0x003C000A); /* basic.qos */
    put_u32(out, 0);
    put_u16(out, (uint16_t)o->prefetch);
    put_u8(out, 0);
    frame_end(out, start);
    amqp_call(&k->c, BASIC_QOS_OK);
}

static void consumer_start(struct consumer *k) {
    struct bytes *out = &k->c.out;
    size_t start = method_begin(out, 1, 0x003C0014); /* basic.consume */
    put_u16(out, 0);
    put_shortstr(out, k->o->queue);
    put_shortstr(out, "load");
    put_u8(out, k->ack_every ? 0 : 2); /* no-ack */
    put_u32(out, 0);
    frame_end(out, start);
    amqp_call(&k->c, BASIC_CONSUME_OK);
}

/* ---- basic.get ---- */

static struct frame next_frame(struct amqp *c) {
    struct frame f;
    while (!amqp_next(c, &f)) {
        struct pollfd fd = {.fd = c->fd, .events = POLLIN};
        if (poll(&fd, 1, c->timeout_s * 1000) <= 0) die(EXIT_TIMEOUT, "get: no content for %d s", c->timeout_s);
        amqp_pump(c, true, false);
    }
    return f;
}

/* Each get waits for its message; an ack is a write of its own, as in most client libraries. */
static void get_all(struct amqp *c, const struct options *o) {
    bool is_auto = !strcmp(o->ack, "auto"), is_kept = !strcmp(o->ack, "none");
    steady_begin(o);
    uint64_t begin = now_us();
    for (unsigned long n = 0; n < o->count; n++) {
        size_t start = method_begin(&c->out, 1, 0x003C0046); /* basic.get */
        put_u16(&c->out, 0);
        put_shortstr(&c->out, o->queue);
        put_u8(&c->out, is_auto);
        frame_end(&c->out, start);
        struct frame f = amqp_call(c, BASIC_GET_OK);
        if (f.size < 13) die(EXIT_BROKER, "get: get-ok of %u bytes", f.size);
        uint64_t tag = get_u64(f.payload + 4), left;
        f = next_frame(c);
        if (f.type != FRAME_HEADER || f.size < 14) die(EXIT_BROKER, "get: unexpected frame");
        for (left = get_u64(f.payload + 4); left; left -= f.size) {
            f = next_frame(c);
            if (f.type != FRAME_BODY || !f.size || f.size > left) die(EXIT_BROKER, "get: unexpected frame");
        }
        if (is_auto || is_kept) continue;
        start = method_begin(&c->out, 1, BASIC_ACK);
        put_u64(&c->out, tag);
        put_u8(&c->out, 0);
        frame_end(&c->out, start);
        amqp_pump(c, false, true);
    }
    double seconds = (double)(now_us() - begin) / 1e6;
    printf("{\"messages\": %lu, \"seconds\": %.4f, \"rate\": %.1f, \"client_cpu_us\": %.3f}\n", o->count, seconds,
           (double)o->count / seconds, steady_cpu_us() / (double)o->count);
    fflush(stdout);
}

/* ---- topology ---- */

void declare_queue(struct amqp *c, const struct options *o, const char *queue) {
    bool quorum = strcmp(o->type, "quorum") == 0;
    size_t start = method_begin(&c->out, 1, 0x0032000A); /* queue.declare */
    put_u16(&c->out, 0);
    put_shortstr(&c->out, queue);
    put_u8(&c->out, quorum || !o->transient ? 2 : 0); /* durable */
    put_u32(&c->out, (uint32_t)(1 + 12 + 1 + 4 + strlen(o->type)));
    put_shortstr(&c->out, "x-queue-type");
    put_u8(&c->out, 'S');
    put_u32(&c->out, (uint32_t)strlen(o->type));
    put_raw(&c->out, o->type, strlen(o->type));
    frame_end(&c->out, start);
    amqp_call(c, QUEUE_DECLARE_OK);
}

static void declare(struct amqp *c, const struct options *o) {
    size_t start;
    declare_queue(c, o, o->queue);
    if (o->purge) {
        start = method_begin(&c->out, 1, 0x0032001E);
        put_u16(&c->out, 0);
        put_shortstr(&c->out, o->queue);
        put_u8(&c->out, 0);
        frame_end(&c->out, start);
        amqp_call(c, QUEUE_PURGE_OK);
    }
    if (!*o->exchange) return;
    start = method_begin(&c->out, 1, 0x0028000A); /* exchange.declare, direct */
    put_u16(&c->out, 0);
    put_shortstr(&c->out, o->exchange);
    put_shortstr(&c->out, "direct");
    put_u8(&c->out, 2);
    put_u32(&c->out, 0);
    frame_end(&c->out, start);
    amqp_call(c, EXCHANGE_DECLARE_OK);
    start = method_begin(&c->out, 1, 0x00320014); /* queue.bind */
    put_u16(&c->out, 0);
    put_shortstr(&c->out, o->queue);
    put_shortstr(&c->out, o->exchange);
    put_shortstr(&c->out, o->key);
    put_u8(&c->out, 0);
    put_u32(&c->out, 0);
    frame_end(&c->out, start);
    amqp_call(c, QUEUE_BIND_OK);
}

static void delete_queue(struct amqp *c, const struct options *o) {
    size_t start = method_begin(&c->out, 1, 0x00320028);
    put_u16(&c->out, 0);
    put_shortstr(&c->out, o->queue);
    put_u8(&c->out, 0);
    frame_end(&c->out, start);
    struct frame f = amqp_call(c, QUEUE_DELETE_OK);
    printf("{\"messages\": %u}\n", f.size >= 8 ? get_u32(f.payload + 4) : 0);
}

/* ---- the runs ---- */

static void run(struct publisher *p, struct consumer *k, const struct options *o) {
    steady_begin(o);
    uint64_t begin = now_us(), published_at = 0, consumed_at = 0;
    int wait_ms = 0; /* deliveries may have come with consume-ok */
    struct frame f;
    if (k) consumer_start(k);
    uint64_t now = now_us(), last_progress = now;
    if (p) p->begin_us = k ? now : begin;
    while ((p && p->done < o->count) || (p && p->pending) || (k && k->received < o->count) ||
           (k && k->c.sent < k->c.out.size)) {
        struct pollfd fds[2];
        nfds_t n = 0;
        if (p) {
            publisher_fill(p, now);
            fds[n++] = (struct pollfd){.fd = p->c.fd, .events = (short)(POLLIN | (p->pending ? POLLOUT : 0))};
        }
        if (k) {
            bool waiting = k->c.sent < k->c.out.size;
            fds[n++] = (struct pollfd){.fd = k->c.fd, .events = (short)(POLLIN | (waiting ? POLLOUT : 0))};
        }
        poll(fds, n, wait_ms);
        wait_ms = o->rate ? 1 : 200;
        now = now_us();
        bool moved = false;
        n = 0;
        if (p) {
            short got = fds[n++].revents;
            if (got & (POLLIN | POLLHUP | POLLERR)) moved |= amqp_pump(&p->c, true, false);
            while (amqp_next(&p->c, &f)) publisher_frame(p, &f, now);
            for (int writes = 0; writes < WRITES_PER_TURN; writes++) {
                publisher_fill(p, now);
                if (!publisher_write(p)) break;
                moved = true;
                if (p->pending) break;
            }
            if (!published_at && p->done == o->count && !p->pending) published_at = now;
        }
        if (k) {
            short got = fds[n++].revents;
            if (got & (POLLIN | POLLHUP | POLLERR)) moved |= amqp_pump(&k->c, true, false);
            while (k->received < o->count && amqp_next(&k->c, &f)) consumer_frame(k, &f, now);
            if (k->c.out.size) moved |= amqp_pump(&k->c, false, true);
            if (!consumed_at && k->received >= o->count) consumed_at = now;
        }
        if (moved) last_progress = now;
        if (now - last_progress > o->timeout * 1000000u)
            die(EXIT_TIMEOUT, "no progress for %lu s: %lu sent, %lu confirmed, %lu received of %lu", o->timeout,
                p ? p->sent : 0, p ? p->done : 0, k ? k->received : 0, o->count);
    }
    uint64_t end = published_at > consumed_at ? published_at : consumed_at;
    double seconds = (double)(end - begin) / 1e6;
    printf("{\"messages\": %lu, \"seconds\": %.4f, \"rate\": %.1f, \"client_cpu_us\": %.3f", o->count, seconds,
           (double)o->count / seconds, steady_cpu_us() / (double)o->count);
    if (p && !o->no_confirm) {
        printf(", \"nacked\": %lu", p->nacked);
        p->latency.count = p->done;
        print_samples("", &p->latency);
    }
    if (k) printf(", \"redelivered\": %lu", k->redelivered);
    if (p && k) print_samples("delivery_", &k->latency);
    printf("}\n");
    fflush(stdout);
}

static unsigned long number(const char *name, const char *text, unsigned long max) {
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    if (!*text || *text == '-' || *end || value > max)
        die(EXIT_USAGE, "--%s takes a number from 0 to %lu, not '%s'", name, max, text);
    return value;
}

static const struct option LONG[] = {
    {"host", 1, 0, 'h'}, {"port", 1, 0, 'p'}, {"consume-port", 1, 0, 'P'}, {"user", 1, 0, 'u'},
    {"password", 1, 0, 'w'}, {"vhost", 1, 0, 'v'}, {"queue", 1, 0, 'q'}, {"type", 1, 0, 't'},
    {"exchange", 1, 0, 'e'}, {"key", 1, 0, 'k'}, {"ack", 1, 0, 'a'}, {"count", 1, 0, 'c'},
    {"size", 1, 0, 's'}, {"in-flight", 1, 0, 'i'}, {"prefetch", 1, 0, 'f'}, {"timeout", 1, 0, 'T'},
    {"rate", 1, 0, 'r'}, {"per-write", 1, 0, 'W'}, {"transient", 0, 0, 'n'}, {"no-declare", 0, 0, 'd'}, {"purge", 0, 0, 'g'},
    {"no-confirm", 0, 0, 'N'}, {"announce", 0, 0, 'A'}, {"connections", 1, 0, 'C'}, {"queues", 1, 0, 'Q'},
    {"servers", 1, 0, 'S'}, {"seconds", 1, 0, 'x'}, {"warm-up", 1, 0, 'y'}, {0, 0, 0, 0}};

static struct options parse(int argc, char **argv) {
    struct options o = {.host = "127.0.0.1", .port = "5672", .user = "guest", .password = "guest",
        .vhost = "/", .queue = "amqpload", .type = "quorum", .exchange = "", .ack = "each",
        .count = ULONG_MAX, .size = 1024, .in_flight = 1000, .prefetch = 1000, .timeout = 30,
        .connections = 1, .queues = 1, .servers = 1, .seconds = 10, .warm_up = 1};
    int c;
    while ((c = getopt_long(argc, argv, "", LONG, NULL)) != -1) switch (c) {
        case 'h': o.host = optarg; break;
        case 'p': o.port = optarg; break;
        case 'P': o.consume_port = optarg; break;
        case 'u': o.user = optarg; break;
        case 'w': o.password = optarg; break;
        case 'v': o.vhost = optarg; break;
        case 'q': o.queue = optarg; break;
        case 't': o.type = optarg; break;
        case 'e': o.exchange = optarg; break;
        case 'k': o.key = optarg; break;
        case 'a': o.ack = optarg; break;
        case 'c': o.count = number("count", optarg, COUNT_MAX); break;
        case 's': o.size = number("size", optarg, SIZE_MAX_BYTES); break;
        case 'i': o.in_flight = number("in-flight", optarg, IN_FLIGHT_MAX); break;
        case 'f': o.prefetch = number("prefetch", optarg, 65535); break;
        case 'T': o.timeout = number("timeout", optarg, 3600); break;
        case 'r': o.rate = number("rate", optarg, 10000000); break;
        case 'W': o.per_write = number("per-write", optarg, IN_FLIGHT_MAX); break;
        case 'n': o.transient = true; break;
        case 'd': o.no_declare = true; break;
        case 'g': o.purge = true; break;
        case 'N': o.no_confirm = true; break;
        case 'A': o.announce = true; break;
        case 'C': o.connections = number("connections", optarg, CONNECTIONS_MAX); break;
        case 'Q': o.queues = number("queues", optarg, CONNECTIONS_MAX); break;
        case 'S': o.servers = number("servers", optarg, CONNECTIONS_MAX); break;
        case 'x': o.seconds = number("seconds", optarg, 3600); break;
        case 'y': o.warm_up = number("warm-up", optarg, 3600); break;
        default: die(EXIT_USAGE, "the options are listed in amqpload.c");
    }
    if (!o.key) o.key = o.queue;
    if (!o.consume_port) o.consume_port = o.port;
    if (!o.count || !o.in_flight || !o.timeout) die(EXIT_USAGE, "count, in-flight and timeout are at least 1");
    if (!o.connections || !o.queues || !o.servers || !o.seconds)
        die(EXIT_USAGE, "connections, queues, servers and seconds are at least 1");
    if (strcmp(o.ack, "each") && strcmp(o.ack, "auto") && strcmp(o.ack, "none") &&
        (strncmp(o.ack, "multiple:", 9) || !number("ack", o.ack + 9, 65535)))
        die(EXIT_USAGE, "--ack takes each, auto, none or multiple:K, not '%s'", o.ack);
    if (!strncmp(o.ack, "multiple:", 9) && o.prefetch && strtoul(o.ack + 9, NULL, 10) > o.prefetch)
        die(EXIT_USAGE, "--ack %s with a prefetch of %lu would wait for ever", o.ack, o.prefetch);
    return o;
}

int main(int argc, char **argv) {
    static struct publisher p;
    static struct consumer k;
    const char *verb = argc > 1 ? argv[1] : "";
    bool both = !strcmp(verb, "both"), publish = both || !strcmp(verb, "publish"),
         consume = both || !strcmp(verb, "consume"), get = !strcmp(verb, "get"), remove = !strcmp(verb, "delete");
    bool grpc = !strcmp(verb, "grpc"), many = many_has(verb);
    if (!publish && !consume && !get && !remove && !grpc && !many)
        die(EXIT_USAGE, "usage: amqpload publish|consume|both|get|delete|publishers|paced|consumers|rpc|churn|grpc "
                        "[--queue Q] [--count N] ...");
    struct options o = parse(argc - 1, argv + 1);
    if (o.count == ULONG_MAX) o.count = many ? COUNT_MAX : COUNT_DEFAULT;
    if (grpc || many) {
        if (grpc) grpc_run(&o);
        else many_run(verb, &o);
        return 0;
    }
    if (!get && !strcmp(o.ack, "none")) die(EXIT_USAGE, "--ack none is for get");
    int timeout = (int)o.timeout;
    if (publish || get || remove) amqp_open(&p.c, "publisher", o.host, o.port, o.user, o.password, o.vhost, timeout);
    if (consume) amqp_open(&k.c, "consumer", o.host, o.consume_port, o.user, o.password, o.vhost, timeout);
    struct amqp *first = publish || get || remove ? &p.c : &k.c;
    if (remove) {
        delete_queue(first, &o);
        amqp_close(first);
        return 0;
    }
    if (!o.no_declare) declare(first, &o);
    if (get) {
        get_all(first, &o);
        amqp_close(first);
        return 0;
    }
    if (publish) publisher_prepare(&p, &o);
    if (consume) consumer_prepare(&k, &o);
    run(publish ? &p : NULL, consume ? &k : NULL, &o);
    if (publish) amqp_close(&p.c);
    if (consume) amqp_close(&k.c);
    return 0;
}
