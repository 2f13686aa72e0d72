/* What the load programs share: options, clock, latencies, the encoding of one message.
 *
 * amqpload.c has the options and the runs of one or two connections, many.c those of many
 * connections, grpcload.c the gRPC stream.
 */
#ifndef LOAD_H
#define LOAD_H

#include "amqp_client.h"

struct options {
    const char *host, *port, *consume_port, *user, *password, *vhost;
    const char *queue, *type, *exchange, *key, *ack;
    unsigned long count, size, in_flight, prefetch, timeout, rate, per_write;
    unsigned long connections, queues, servers, seconds, warm_up;
    bool transient, no_declare, purge, no_confirm, announce;
};

struct samples {
    uint32_t *us;
    size_t count, room;
};

uint64_t now_us(void);
/* Where the steady state begins: what was used until now is not counted, and whoever started this
 * program is told by one line if --announce asks for it. */
void steady_begin(const struct options *o);
/* User and system time of this program since steady_begin, in microseconds. */
double steady_cpu_us(void);
void *zeroed(size_t count, size_t size);
void add_sample(struct samples *s, uint64_t us);
/* Appends ", "PREFIXmean_us": …" and so on to the line of JSON. */
void print_samples(const char *prefix, struct samples *s);
/* One publish as frames of channel 1; stamp_at is where its body begins. */
void encode_message(struct bytes *b, const struct options *o, const char *key, const char *reply_to,
                    uint32_t frame_max, size_t *stamp_at);
void declare_queue(struct amqp *c, const struct options *o, const char *queue);
void select_confirms(struct amqp *c);

/* The runs of many.c, by verb. */
bool many_has(const char *verb);
void many_run(const char *verb, const struct options *o);
/* Publishes over the Messages service of gRPC. */
void grpc_run(const struct options *o);

#endif
