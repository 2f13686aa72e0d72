/* A very small AMQP 0-9-1 client for load programs: one connection, one channel, a raw socket.
 *
 * Set-up calls are synchronous. Steady state is the caller's: it queues bytes that it encoded
 * beforehand and takes whole frames, so that the program costs next to nothing per message.
 * Everything the broker sends is bounded and checked; any error prints one line and exits.
 */
#ifndef AMQP_CLIENT_H
#define AMQP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXIT_BROKER 2   /* the broker refused, closed or broke the protocol */
#define EXIT_TIMEOUT 3  /* no progress for --timeout seconds */
#define EXIT_USAGE 64

#define FRAME_METHOD 1
#define FRAME_HEADER 2
#define FRAME_BODY 3
#define FRAME_HEARTBEAT 8
#define FRAME_OVERHEAD 8 /* type, channel, size, end mark */
#define FRAME_MAX_WANTED 131072

/* class id << 16 | method id */
#define CONNECTION_START 0x000A000Au
#define CONNECTION_TUNE 0x000A001Eu
#define CONNECTION_OPEN_OK 0x000A0029u
#define CONNECTION_CLOSE 0x000A0032u
#define CONNECTION_CLOSE_OK 0x000A0033u
#define CONNECTION_BLOCKED 0x000A003Cu
#define CONNECTION_UNBLOCKED 0x000A003Du
#define CHANNEL_OPEN_OK 0x0014000Bu
#define CHANNEL_CLOSE 0x00140028u
#define EXCHANGE_DECLARE_OK 0x0028000Bu
#define QUEUE_DECLARE_OK 0x0032000Bu
#define QUEUE_BIND_OK 0x00320015u
#define QUEUE_PURGE_OK 0x0032001Fu
#define QUEUE_DELETE_OK 0x00320029u
#define BASIC_QOS_OK 0x003C000Bu
#define BASIC_CONSUME_OK 0x003C0015u
#define BASIC_DELIVER 0x003C003Cu
#define BASIC_GET_OK 0x003C0047u
#define BASIC_ACK 0x003C0050u
#define BASIC_NACK 0x003C0078u
#define CONFIRM_SELECT_OK 0x0055000Bu

struct bytes { /* a growing byte string */
    uint8_t *at;
    size_t size, room;
};

struct frame {
    uint8_t type;
    uint16_t channel;
    uint32_t size;
    const uint8_t *payload;
};

struct amqp {
    int fd;
    uint32_t frame_max;
    uint8_t *in;               /* what was read and not taken yet: in[head..tail) */
    size_t head, tail, in_room;
    struct bytes out;          /* what waits to be written: out.at[sent..out.size) */
    size_t sent;
    int timeout_s;
    const char *role;          /* named in errors */
};

void die(int status, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

void put_u8(struct bytes *b, uint8_t value);
void put_u16(struct bytes *b, uint16_t value);
void put_u32(struct bytes *b, uint32_t value);
void put_u64(struct bytes *b, uint64_t value);
void put_raw(struct bytes *b, const void *data, size_t size);
void put_shortstr(struct bytes *b, const char *text);
uint64_t get_u64(const uint8_t *at);
uint32_t get_u32(const uint8_t *at);

/* A frame is opened with its payload unknown, filled, and closed: then its size is written. */
size_t frame_begin(struct bytes *b, uint8_t type, uint16_t channel);
void frame_end(struct bytes *b, size_t start);
size_t method_begin(struct bytes *b, uint16_t channel, uint32_t method);

/* Connect and no more: for another protocol; the socket is non-blocking afterwards. */
void amqp_connect(struct amqp *c, const char *role, const char *host, const char *port, int timeout_s);
/* Connect, log in, open vhost and channel 1; the socket is non-blocking afterwards. */
void amqp_open(struct amqp *c, const char *role, const char *host, const char *port,
               const char *user, const char *password, const char *vhost, int timeout_s);
/* Write what is queued, wait for one method of the broker, die on any other. */
struct frame amqp_call(struct amqp *c, uint32_t expected);
/* The next whole frame already read, or false. */
bool amqp_next(struct amqp *c, struct frame *frame);
/* Read and write what the socket takes now; true if anything moved. */
bool amqp_pump(struct amqp *c, bool readable, bool writable);
/* Method id of a frame; connection.close and channel.close are fatal here, with the broker's words. */
uint32_t amqp_method(struct amqp *c, const struct frame *frame);
void amqp_close(struct amqp *c);

#endif
