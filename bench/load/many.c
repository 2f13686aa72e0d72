/* Many small clients, from one thread with epoll, so that the program does not hide the broker.
 *
 *   amqpload publishers   CONNECTIONS publish, each awaiting its confirm before the next, until SECONDS are over
 *                         or COUNT messages are confirmed
 *   amqpload paced        CONNECTIONS publish RATE messages a second each, whether the broker keeps up or
 *                         not; one consumer per queue takes and acknowledges all of them
 *   amqpload consumers    CONNECTIONS consume what lies in the queues until SECONDS are over or a queue has
 *                         given COUNT messages
 *   amqpload rpc          CONNECTIONS call SERVERS that consume the first queue, and await the answer over
 *                         direct reply-to before the next call
 *   amqpload churn        CONNECTIONS threads connect, declare a queue, publish one message with a confirm,
 *                         and close, for SECONDS
 *   amqpload drop         delete the queues
 *
 * The queues are QUEUE-0 to QUEUE-(QUEUES - 1). --port takes several ports with commas: queue, consumer and
 * connection n are at port n modulo their number. What happens in the first WARM-UP seconds is not
 * counted. Latencies of `paced` begin when a message was due, so that a late program or a broker that
 * does not read cannot hide what a client would have waited. Set-up is one connection after the other.
 */
#include "load.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define PORTS_MAX 16
#define EVENTS_AT_ONCE 256
#define REPLY_QUEUE "amq.rabbitmq.reply-to"

enum role { PUBLISHER, CONSUMER, CALLER, SERVER };

struct peer { /* one connection */
    struct amqp c;
    enum role role;
    unsigned long queue, sent;
    struct bytes message; /* its publish, encoded once */
    size_t stamp_at;
    uint64_t sent_at;
    uint64_t tag, body_left, stamp; /* of the delivery that is coming in */
    bool in_content, waits_to_write;
    char reply_to[256];
};

static struct {
    const struct options *o;
    const char *ports[PORTS_MAX];
    size_t port_count;
    struct peer *peers;
    size_t count, publishers;
    int epoll;
    struct samples confirms, deliveries;
    unsigned long done, published, received, nacked, redelivered;
    unsigned long *taken; /* by queue */
    uint64_t steady_at;   /* 0 before */
    bool is_over, is_closed_loop;
} m;

static const char *port_of(unsigned long number) { return m.ports[number % m.port_count]; }

static const char *queue_name(char *name, unsigned long number) {
    snprintf(name, 256, "%s-%lu", m.o->queue, number % m.o->queues);
    return name;
}

/* ---- sending ---- */

static void flush(struct peer *p) {
    if (p->c.out.size) amqp_pump(&p->c, false, true);
    bool waits = p->c.out.size > 0;
    if (waits == p->waits_to_write) return;
    struct epoll_event e = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = p};
    if (epoll_ctl(m.epoll, EPOLL_CTL_MOD, p->c.fd, &e)) die(1, "epoll_ctl");
    p->waits_to_write = waits;
}

static void publish(struct peer *p, uint64_t stamp) {
    if (m.o->size >= 8) memcpy(p->message.at + p->stamp_at, &stamp, 8);
    put_raw(&p->c.out, p->message.at, p->message.size);
    p->sent++;
    p->sent_at = stamp;
    m.published++;
}

static void acknowledge(struct peer *p) {
    size_t start = method_begin(&p->c.out, 1, BASIC_ACK);
    put_u64(&p->c.out, p->tag);
    put_u8(&p->c.out, 0);
    frame_end(&p->c.out, start);
}

/* ---- what comes ---- */

static void on_confirm(struct peer *p, const struct frame *f, bool nack, uint64_t now) {
    if (f->size < 13) die(EXIT_BROKER, "publisher: confirm of %u bytes", f->size);
    uint64_t tag = get_u64(f->payload + 4);
    if (!tag || tag > p->sent) die(EXIT_BROKER, "publisher: confirm of tag %lu, never sent", (unsigned long)tag);
    m.nacked += nack;
    if (!m.is_closed_loop) return;
    if (tag != p->sent) die(EXIT_BROKER, "publisher: tag %lu confirmed twice", (unsigned long)tag);
    if (m.steady_at) {
        m.done++;
        add_sample(&m.confirms, now - p->sent_at);
    }
    if (!m.is_over) publish(p, now);
}

static void on_message(struct peer *p, uint64_t now) {
    p->in_content = false;
    m.received++;
    if (p->role == SERVER) {
        struct bytes answer = {0};
        size_t stamp_at;
        encode_message(&answer, m.o, p->reply_to, NULL, p->c.frame_max, &stamp_at);
        put_raw(&p->c.out, answer.at, answer.size);
        free(answer.at);
        acknowledge(p);
        return;
    }
    if (p->role == CALLER) {
        if (m.steady_at) {
            m.done++;
            add_sample(&m.deliveries, now - p->sent_at);
        }
        if (!m.is_over) publish(p, now);
        return;
    }
    acknowledge(p);
    m.taken[p->queue]++;
    if (!m.steady_at) return;
    m.done++;
    if (p->stamp >= m.steady_at && p->stamp <= now) add_sample(&m.deliveries, now - p->stamp);
}

/* Of a content header: the properties up to reply-to (AMQP 0-9-1 §4.2.6.1). */
static void take_reply_to(struct peer *p, const struct frame *f) {
    unsigned flags = (unsigned)f->payload[12] << 8 | f->payload[13];
    size_t at = 14;
    p->reply_to[0] = 0;
    for (unsigned bit = 0x8000; bit >= 0x0200; bit >>= 1) {
        if (!(flags & bit)) continue;
        bool is_table = bit == 0x2000, is_byte = bit == 0x1000 || bit == 0x0800;
        size_t left = f->size > at ? f->size - at : 0, size = is_table ? 4 : 1;
        if (left < size) break;
        if (is_table) size += get_u32(f->payload + at);
        else if (!is_byte) size += f->payload[at];
        if (left < size) break;
        if (bit == 0x0200) snprintf(p->reply_to, sizeof p->reply_to, "%.*s", (int)size - 1, (const char *)f->payload + at + 1);
        at += size;
    }
    if (!p->reply_to[0]) die(EXIT_BROKER, "server: a request without reply-to");
}

static void on_content(struct peer *p, const struct frame *f, uint64_t now) {
    if (f->type == FRAME_HEADER) {
        if (!p->in_content || f->size < 14) die(EXIT_BROKER, "consumer: unexpected header frame");
        p->body_left = get_u64(f->payload + 4);
        p->stamp = 0;
        if (p->role == SERVER) take_reply_to(p, f);
    } else {
        if (!p->in_content || !f->size || f->size > p->body_left) die(EXIT_BROKER, "consumer: unexpected body frame");
        if (!p->stamp && f->size >= 8) memcpy(&p->stamp, f->payload, 8);
        p->body_left -= f->size;
    }
    if (!p->body_left) on_message(p, now);
}

static void on_frame(struct peer *p, const struct frame *f, uint64_t now) {
    if (f->type == FRAME_HEADER || f->type == FRAME_BODY) {
        on_content(p, f, now);
        return;
    }
    uint32_t method = amqp_method(&p->c, f);
    if (method == BASIC_ACK || method == BASIC_NACK) {
        on_confirm(p, f, method == BASIC_NACK, now);
    } else if (method == BASIC_DELIVER) {
        uint32_t at = 4u + 1u + (f->size > 4 ? f->payload[4] : 0);
        if (p->in_content || f->size < at + 9) die(EXIT_BROKER, "consumer: unexpected deliver");
        p->tag = get_u64(f->payload + at);
        m.redelivered += f->payload[at + 8] & 1;
        p->in_content = true;
    }
}

/* Frames that have been read already: deliveries may come together with consume-ok. */
static void take_frames(struct peer *p, uint64_t now) {
    struct frame f;
    while (amqp_next(&p->c, &f)) on_frame(p, &f, now);
    flush(p);
}

/* One round of the loop; true if anything came. */
static bool turn(int wait_ms) {
    struct epoll_event events[EVENTS_AT_ONCE];
    int n = epoll_wait(m.epoll, events, EVENTS_AT_ONCE, wait_ms);
    for (int i = 0; i < n; i++) {
        struct peer *p = events[i].data.ptr;
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) amqp_pump(&p->c, true, false);
        take_frames(p, now_us());
    }
    return n > 0;
}

/* ---- set-up ---- */

static void open_amqp(struct amqp *c, const char *role, unsigned long number) {
    const struct options *o = m.o;
    amqp_open(c, role, o->host, port_of(number), o->user, o->password, o->vhost, (int)o->timeout);
}

static void for_each_queue(void (*what)(struct amqp *, const char *)) {
    for (unsigned long at = 0; at < m.port_count; at++) {
        struct amqp c;
        char name[256];
        open_amqp(&c, "declarer", at);
        for (unsigned long n = at; n < m.o->queues; n += m.port_count) what(&c, queue_name(name, n));
        amqp_close(&c);
    }
}

static void declare_one(struct amqp *c, const char *queue) { declare_queue(c, m.o, queue); }

static void drop_one(struct amqp *c, const char *queue) {
    size_t start = method_begin(&c->out, 1, 0x00320028);
    put_u16(&c->out, 0);
    put_shortstr(&c->out, queue);
    put_u8(&c->out, 0);
    frame_end(&c->out, start);
    amqp_call(c, QUEUE_DELETE_OK);
}

static struct peer *add_peer(enum role role, unsigned long number, unsigned long queue) {
    static const char *const NAMES[] = {"publisher", "consumer", "caller", "server"};
    struct peer *p = &m.peers[m.count++];
    p->role = role;
    p->queue = queue % m.o->queues;
    open_amqp(&p->c, NAMES[role], number);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
    if (epoll_ctl(m.epoll, EPOLL_CTL_ADD, p->c.fd, &e)) die(1, "epoll_ctl");
    return p;
}

static struct peer *add_publisher(enum role role, unsigned long number, unsigned long queue) {
    struct peer *p = add_peer(role, number, queue);
    char name[256];
    encode_message(&p->message, m.o, queue_name(name, queue), role == CALLER ? REPLY_QUEUE : NULL,
                   p->c.frame_max, &p->stamp_at);
    if (role == PUBLISHER) select_confirms(&p->c);
    m.publishers++;
    return p;
}

static void consume(struct peer *p, const char *queue, bool no_ack) {
    struct bytes *out = &p->c.out;
    size_t start;
    if (!no_ack) {
        start = method_begin(out, 1, 0x003C000A); /* basic.qos */
        put_u32(out, 0);
        put_u16(out, (uint16_t)m.o->prefetch);
        put_u8(out, 0);
        frame_end(out, start);
        amqp_call(&p->c, BASIC_QOS_OK);
    }
    start = method_begin(out, 1, 0x003C0014); /* basic.consume */
    put_u16(out, 0);
    put_shortstr(out, queue);
    put_shortstr(out, "load");
    put_u8(out, no_ack ? 2 : 0);
    put_u32(out, 0);
    frame_end(out, start);
    amqp_call(&p->c, BASIC_CONSUME_OK);
    take_frames(p, now_us());
}

static void add_consumer(enum role role, unsigned long number, unsigned long queue) {
    char name[256];
    consume(add_peer(role, number, queue), queue_name(name, queue), false);
}

/* ---- the runs ---- */

/* Runs what is set up: `each` once per turn, until it says so or the time is over. */
static void run_for(bool (*each)(uint64_t now), int wait_ms) {
    uint64_t begin = now_us(), last_progress = begin, now = begin;
    uint64_t steady = begin + m.o->warm_up * 1000000u, end = steady + m.o->seconds * 1000000u;
    while (now < end && (!each || each(now))) {
        if (turn(wait_ms)) last_progress = now;
        now = now_us();
        if (!m.steady_at && now >= steady) {
            steady_begin(m.o);
            m.steady_at = now_us();
        }
        if (now - last_progress > m.o->timeout * 1000000u)
            die(EXIT_TIMEOUT, "no progress for %lu s: %lu messages so far", m.o->timeout, m.done);
    }
    m.is_over = true;
}

static void report(void) {
    uint64_t now = now_us(), begin = m.steady_at ? m.steady_at : now;
    double seconds = (double)(now - begin) / 1e6;
    if (!m.done) die(EXIT_BROKER, "nothing was counted: all was over within the warm-up");
    printf("{\"messages\": %lu, \"seconds\": %.4f, \"rate\": %.1f, \"client_cpu_us\": %.3f, \"nacked\": %lu, \"redelivered\": %lu",
           m.done, seconds, (double)m.done / seconds, steady_cpu_us() / (double)m.done, m.nacked, m.redelivered);
    print_samples("", &m.confirms);
    print_samples("delivery_", &m.deliveries);
    printf("}\n");
    fflush(stdout);
}

static bool is_count_missing(uint64_t now) {
    (void)now;
    return m.done < m.o->count;
}

static void run_publishers(void) {
    m.is_closed_loop = true;
    for (unsigned long n = 0; n < m.o->connections; n++) add_publisher(PUBLISHER, n, n);
    for (size_t n = 0; n < m.count; n++) {
        publish(&m.peers[n], now_us());
        flush(&m.peers[n]);
    }
    run_for(is_count_missing, 100);
    report();
}

static unsigned long paced_turns;
static uint64_t paced_from;

static bool publish_what_is_due(uint64_t now) {
    double step_us = 1e6 / (double)m.o->rate / (double)m.publishers;
    for (;;) {
        uint64_t due = paced_from + (uint64_t)((double)paced_turns * step_us);
        if (due > now) return true;
        struct peer *p = &m.peers[paced_turns++ % m.publishers];
        publish(p, due);
        flush(p);
    }
}

static void run_paced(void) {
    if (!m.o->rate) die(EXIT_USAGE, "paced: --rate is messages per second of each connection, at least 1");
    for (unsigned long n = 0; n < m.o->connections; n++) add_publisher(PUBLISHER, n, n);
    for (unsigned long n = 0; n < m.o->queues; n++) add_consumer(CONSUMER, n, n);
    paced_from = now_us();
    run_for(publish_what_is_due, 1);
    uint64_t end = now_us() + m.o->timeout * 1000000u;
    while (m.received < m.published) {
        turn(100);
        if (now_us() > end)
            die(EXIT_TIMEOUT, "%lu of %lu messages not delivered %lu s after the last was published",
                m.published - m.received, m.published, m.o->timeout);
    }
    report();
}

static bool no_queue_is_dry(uint64_t now) {
    (void)now;
    for (unsigned long n = 0; n < m.o->queues; n++)
        if (m.taken[n] >= m.o->count) return false;
    return true;
}

static void run_consumers(void) {
    for (unsigned long n = 0; n < m.o->connections; n++) add_consumer(CONSUMER, n, n);
    run_for(no_queue_is_dry, 100);
    report();
}

static void run_rpc(void) {
    for (unsigned long n = 0; n < m.o->connections; n++) consume(add_publisher(CALLER, n, 0), REPLY_QUEUE, true);
    for (unsigned long n = 0; n < m.o->servers; n++) add_consumer(SERVER, n, 0);
    for (size_t n = 0; n < m.publishers; n++) {
        publish(&m.peers[n], now_us());
        flush(&m.peers[n]);
    }
    run_for(NULL, 100);
    report();
}

/* ---- connections that come and go ---- */

struct churner {
    pthread_t thread;
    unsigned long number;
    uint64_t end;
    struct samples cycles;
};

static void *churn(void *argument) {
    struct churner *t = argument;
    unsigned long n = t->number;
    for (uint64_t begin = now_us(); begin < t->end; begin = now_us(), n += m.o->connections) {
        struct amqp c;
        struct bytes message = {0};
        size_t stamp_at;
        char name[256];
        open_amqp(&c, "client", n);
        declare_queue(&c, m.o, queue_name(name, n));
        select_confirms(&c);
        encode_message(&message, m.o, name, NULL, c.frame_max, &stamp_at);
        put_raw(&c.out, message.at, message.size);
        free(message.at);
        amqp_call(&c, BASIC_ACK);
        amqp_close(&c);
        add_sample(&t->cycles, now_us() - begin);
    }
    return NULL;
}

static void run_churn(void) {
    struct churner *threads = zeroed(m.o->connections, sizeof *threads);
    steady_begin(m.o);
    m.steady_at = now_us();
    for (unsigned long n = 0; n < m.o->connections; n++) {
        threads[n].number = n;
        threads[n].end = m.steady_at + m.o->seconds * 1000000u;
        if (pthread_create(&threads[n].thread, NULL, churn, &threads[n])) die(1, "pthread_create");
    }
    for (unsigned long n = 0; n < m.o->connections; n++) {
        pthread_join(threads[n].thread, NULL);
        m.done += threads[n].cycles.count;
        for (size_t i = 0; i < threads[n].cycles.count; i++) add_sample(&m.confirms, threads[n].cycles.us[i]);
        free(threads[n].cycles.us);
    }
    free(threads);
    report();
}

static void run_drop(void) { for_each_queue(drop_one); printf("{\"messages\": 0}\n"); }

static const struct verb {
    const char *name;
    void (*run)(void);
} VERBS[] = {{"publishers", run_publishers}, {"paced", run_paced}, {"consumers", run_consumers},
             {"rpc", run_rpc}, {"churn", run_churn}, {"drop", run_drop}};
#define VERB_COUNT (sizeof VERBS / sizeof *VERBS)

static const struct verb *find(const char *verb) {
    for (size_t n = 0; n < VERB_COUNT; n++)
        if (!strcmp(VERBS[n].name, verb)) return &VERBS[n];
    return NULL;
}

bool many_has(const char *verb) { return find(verb) != NULL; }

void many_run(const char *verb, const struct options *o) {
    char *ports = strdup(o->port);
    m.o = o;
    for (char *port = strtok(ports, ","); port; port = strtok(NULL, ",")) {
        if (m.port_count == PORTS_MAX) die(EXIT_USAGE, "at most %d ports", PORTS_MAX);
        m.ports[m.port_count++] = port;
    }
    if (!m.port_count) die(EXIT_USAGE, "--port takes ports with commas, not '%s'", o->port);
    m.peers = zeroed(o->connections + o->queues + o->servers, sizeof *m.peers);
    m.taken = zeroed(o->queues, sizeof *m.taken);
    m.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (m.epoll < 0) die(1, "epoll_create1");
    const struct verb *run = find(verb);
    if (run->run != run_drop && !o->no_declare) for_each_queue(declare_one);
    run->run();
    for (size_t n = 0; n < m.count; n++) amqp_close(&m.peers[n].c);
    free(ports);
}
