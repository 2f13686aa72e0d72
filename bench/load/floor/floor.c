/* floor: what a confirm takes at the least, with nothing but the system calls of it.
 *
 *   floor DIRECTORY COUNT
 *
 * A client, a leader and two followers, a process each, on loopback.  The client sends SIZE bytes
 * and waits; the leader passes them on to both followers, writes and syncs them, and answers when
 * one follower has; a follower writes, syncs and answers.  Each has a log of its own in DIRECTORY,
 * whose blocks are there before.  Prints one line of JSON: p50 and p99 in microseconds, and the
 * processor time of leader and followers for each message.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE 1100 /* a message of 1 KiB and what is around it */
#define LOG_BYTES (16l << 20)
#define FOLLOWERS 2

static char message[SIZE];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int listener(uint16_t *port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (s < 0 || bind(s, (void *)&at, length) || listen(s, 1) || getsockname(s, (void *)&at, &length))
        fail("listen");
    *port = ntohs(at.sin_port);
    return s;
}

static int prompt(int s) {
    int on = 1;
    if (s < 0 || setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on)) fail("connection");
    return s;
}

static int dial(uint16_t port) {
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (void *)&at, sizeof at)) fail("connect");
    return prompt(s);
}

/* Returns false where the other side has ended. */
static bool read_all(int s, char *into, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t got = read(s, into + done, size - done);
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static void write_all(int s, const char *from, size_t size) {
    if (write(s, from, size) != (ssize_t)size) fail("write");
}

static int log_of(const char *directory, int member) {
    char path[4096];
    snprintf(path, sizeof path, "%s/log-%d", directory, member);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *zeros = calloc(1, LOG_BYTES);
    if (file < 0 || !zeros || pwrite(file, zeros, LOG_BYTES, 0) != LOG_BYTES || fsync(file)) fail(path);
    free(zeros);
    return file;
}

static void append(int file, off_t *at) {
    if (*at + SIZE > LOG_BYTES) *at = 0;
    if (pwrite(file, message, SIZE, *at) != SIZE || fdatasync(file)) fail("log");
    *at += SIZE;
}

static void follow(int listening, const char *directory, int member) {
    int file = log_of(directory, member), leader = prompt(accept(listening, NULL, NULL));
    off_t at = 0;
    write_all(leader, "r", 1);
    while (read_all(leader, message, SIZE)) {
        append(file, &at);
        write_all(leader, "a", 1);
    }
    exit(0);
}

static void lead(int listening, const char *directory, const uint16_t *ports) {
    struct pollfd followers[FOLLOWERS];
    long owed[FOLLOWERS] = {0};
    char answers[64];
    off_t at = 0;
    int file = log_of(directory, 0);
    for (int i = 0; i < FOLLOWERS; i++) {
        followers[i] = (struct pollfd){.fd = dial(ports[i]), .events = POLLIN};
        if (!read_all(followers[i].fd, answers, 1)) fail("a follower");
    }
    int client = prompt(accept(listening, NULL, NULL));
    write_all(client, "r", 1);
    while (read_all(client, message, SIZE)) {
        for (int i = 0; i < FOLLOWERS; i++, owed[i - 1]++) write_all(followers[i].fd, message, SIZE);
        append(file, &at);
        for (bool confirmed = false; !confirmed;) {
            poll(followers, FOLLOWERS, -1);
            for (int i = 0; i < FOLLOWERS; i++) {
                if (followers[i].revents) {
                    ssize_t got = read(followers[i].fd, answers, sizeof answers);
                    if (got <= 0) fail("a follower");
                    owed[i] -= got;
                }
                confirmed = confirmed || !owed[i];
            }
        }
        write_all(client, "c", 1);
    }
    exit(0);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    long count = argc == 3 ? atol(argv[2]) : 0;
    if (count < 1) {
        fprintf(stderr, "usage: floor DIRECTORY COUNT\n");
        return 64;
    }
    uint16_t ports[1 + FOLLOWERS];
    int listening[1 + FOLLOWERS];
    for (int i = 0; i <= FOLLOWERS; i++) listening[i] = listener(&ports[i]);
    for (int i = 1; i <= FOLLOWERS; i++)
        if (!fork()) follow(listening[i], argv[1], i);
    if (!fork()) lead(listening[0], argv[1], ports + 1);
    double *took = calloc((size_t)count, sizeof *took);
    char answer;
    int leader = dial(ports[0]);
    if (!took || !read_all(leader, &answer, 1)) fail("the leader");
    for (long i = 0; i < count; i++) {
        double began = now_us();
        write_all(leader, message, SIZE);
        if (!read_all(leader, &answer, 1)) fail("the leader");
        took[i] = now_us() - began;
    }
    close(leader);
    while (wait(NULL) > 0) continue;
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    double cpu_us = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
                    (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    qsort(took, (size_t)count, sizeof *took, by_size);
    printf("{\"p50_us\": %.0f, \"p99_us\": %.0f, \"cpu_us\": %.0f}\n", took[count / 2],
           took[count * 99 / 100], cpu_us / (double)count);
    return 0;
}
