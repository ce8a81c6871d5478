// SPDX-License-Identifier: MIT OR Apache-2.0
// Moves the wall clock of the process into which it is preloaded, while the process runs. The
// offset is in a file that all processes with this clock map into their memory. Monotonic clocks
// stay as they are.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
// In seconds. A time before this is from a monotonic clock, because no machine runs for so long. A
// time after this is from a wall clock.
#define LATEST_UPTIME 1000000000LL

// The same offset twice, in nanoseconds. `first` is written before `second`, so if they differ, a
// write is under way.
struct offset {
    int64_t first;
    int64_t second;
};

static const struct offset *offset_file;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("RETRYPROOF_CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED
                            : mmap(NULL, sizeof *offset_file, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) {
        static const char text[] = "the file RETRYPROOF_CHAOS_CLOCK cannot be mapped\n";
        if (write(2, text, sizeof text - 1) < 0) {
        }
        _exit(97);
    }
    close(file);
    offset_file = mapped;
}

static int64_t offset_now(void) {
    if (!offset_file) {
        return 0;
    }
    int64_t first = 0;
    for (int tries = 0; tries < 100000; tries++) {
        int64_t second = __atomic_load_n(&offset_file->second, __ATOMIC_ACQUIRE);
        first = __atomic_load_n(&offset_file->first, __ATOMIC_ACQUIRE);
        if (first == second) {
            break;
        }
    }
    return first;
}

static void move(struct timespec *time, int64_t by) {
    int64_t nanoseconds = time->tv_nsec + by % SECOND;
    time->tv_sec += by / SECOND + (nanoseconds >= SECOND) - (nanoseconds < 0);
    time->tv_nsec = (nanoseconds + SECOND) % SECOND;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        move(time, offset_now());
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    if (result == 0) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) {
        return -1;
    }
    if (into) {
        *into = now.tv_sec;
    }
    return now.tv_sec;
}

// The kernel compares a deadline with its own clock, so subtract the offset from the deadline.
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    if (until->tv_sec < LATEST_UPTIME) {
        return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, until);
    }
    struct timespec moved = *until;
    move(&moved, -offset_now());
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &moved);
}
