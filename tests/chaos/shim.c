/* A library that a broker is started with (LD_PRELOAD), so that its disk and clock can misbehave.
 *
 * The same faults for every broker, whatever it is written in: slow or failing syncs, failing
 * writes to files below CHAOS_DATA, syncs that do not return, a wall clock that is wrong.
 * CHAOS_CONTROL names a file of five int64: sync delay in ms, errno of syncs, errno of writes, clock
 * offset in ms, whether syncs stall; it is mapped, so a change acts at once, also on the syncs that
 * stall.  Built and driven by shim.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SYNC_DELAY_MS, SYNC_ERRNO, WRITE_ERRNO, CLOCK_OFFSET_MS, SYNC_STALLS, FIELDS };

static volatile int64_t *control;
static const char *data;

/* The real function; looked up once, brokers ask for the time very often. */
#define NEXT(name) \
    ({ static __typeof__(&name) next; if (!next) next = dlsym(RTLD_NEXT, #name); next; })

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("CHAOS_CONTROL");
    data = getenv("CHAOS_DATA");
    if (!path || !data) return;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    void *mapped = mmap(NULL, FIELDS * sizeof(int64_t), PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped != MAP_FAILED) control = mapped;
    close(descriptor);
}

static int is_data(int descriptor) {
    char link[40], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return strncmp(path, data, strlen(data)) == 0;
}

static int fails(int field, int descriptor) {
    if (!control || !control[field] || !is_data(descriptor)) return 0;
    errno = (int)control[field];
    return 1;
}

static int syncs_badly(int descriptor) {
    if (!control) return 0;
    if (control[SYNC_DELAY_MS] && is_data(descriptor)) usleep(control[SYNC_DELAY_MS] * 1000);
    if (control[SYNC_STALLS] && is_data(descriptor))
        while (control[SYNC_STALLS]) usleep(20000);
    return fails(SYNC_ERRNO, descriptor);
}

int fsync(int descriptor) {
    return syncs_badly(descriptor) ? -1 : NEXT(fsync)(descriptor);
}

int fdatasync(int descriptor) {
    return syncs_badly(descriptor) ? -1 : NEXT(fdatasync)(descriptor);
}

ssize_t write(int descriptor, const void *from, size_t size) {
    return fails(WRITE_ERRNO, descriptor) ? -1 : NEXT(write)(descriptor, from, size);
}

ssize_t pwrite(int descriptor, const void *from, size_t size, off_t offset) {
    return fails(WRITE_ERRNO, descriptor) ? -1 : NEXT(pwrite)(descriptor, from, size, offset);
}

ssize_t pwrite64(int descriptor, const void *from, size_t size, off64_t offset) {
    return fails(WRITE_ERRNO, descriptor) ? -1 : NEXT(pwrite64)(descriptor, from, size, offset);
}

ssize_t writev(int descriptor, const struct iovec *from, int count) {
    return fails(WRITE_ERRNO, descriptor) ? -1 : NEXT(writev)(descriptor, from, count);
}

ssize_t pwritev(int descriptor, const struct iovec *from, int count, off_t offset) {
    return fails(WRITE_ERRNO, descriptor) ? -1 : NEXT(pwritev)(descriptor, from, count, offset);
}

ssize_t pwritev64(int descriptor, const struct iovec *from, int count, off64_t offset) {
    return fails(WRITE_ERRNO, descriptor) ? -1 : NEXT(pwritev64)(descriptor, from, count, offset);
}

static void shift(int64_t *seconds, int64_t *nanoseconds) {
    int64_t offset = control ? control[CLOCK_OFFSET_MS] : 0;
    int64_t total = *nanoseconds + offset % 1000 * 1000000;
    *seconds += offset / 1000;
    if (total < 0) {
        total += 1000000000;
        *seconds -= 1;
    } else if (total >= 1000000000) {
        total -= 1000000000;
        *seconds += 1;
    }
    *nanoseconds = total;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = NEXT(clock_gettime)(clock, now);
    if (done == 0 && clock == CLOCK_REALTIME) shift(&now->tv_sec, &now->tv_nsec);
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    int done = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return done;
}

time_t time(time_t *result) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (result) *result = precise.tv_sec;
    return precise.tv_sec;
}
