// SPDX-License-Identifier: MIT OR Apache-2.0
// This library is preloaded into a process. It makes each change of a file below
// RETRYPROOF_POWER_DIR, and appends the change to the file RETRYPROOF_POWER_JOURNAL. From this
// journal, `disk.rs` computes the files that a power loss at any moment may leave. Syncs are noted in
// the journal, but not made, because they would slow the tests down. RETRYPROOF_POWER_SWALLOW leaves
// syncs out of the journal, as on a disk that acknowledges syncs without making them: all syncs
// (`all`), or those of folders (`folders`).
//
// The library covers the calls that SQLite and Rust's standard library make, with absolute paths. It
// would miss changes through mapped memory, so it ends a process that maps a file for writing. The
// only exception is SQLite's file `-shm`, which SQLite creates again after a power loss.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATED = 1, WROTE, CUT, SYNCED, REMOVED, RENAMED, SYNCED_FOLDER };
enum state { FOREIGN, FILE_OF_OURS, FOLDER, SHARED_MEMORY };
struct head { uint32_t kind, name, inode_high, inode_low; uint64_t at, data; };

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static size_t folder_length;
static int journal = -1, swallow_all, swallow_folders;
static unsigned char states[65536];

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("RETRYPROOF_POWER_JOURNAL"), *swallow = getenv("RETRYPROOF_POWER_SWALLOW");
    const char *below = getenv("RETRYPROOF_POWER_DIR");
    if (!path || !below) return;
    journal = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    swallow_all = swallow && !strcmp(swallow, "all");
    swallow_folders = swallow_all || (swallow && !strcmp(swallow, "folders"));
    folder_length = strlen(below);
    folder = below;
}

static void stop(const char *why) {
    fprintf(stderr, "power shim: %s\n", why);
    abort();
}

// Returns the name below the folder, "" for the folder itself, or NULL for any other path.
static const char *name_of(const char *path) {
    if (!folder || !path || strncmp(path, folder, folder_length)) return NULL;
    if (!path[folder_length]) return "";
    return path[folder_length] == '/' ? path + folder_length + 1 : NULL;
}

static int is_shared_memory(const char *name) {
    size_t length = strlen(name);
    return length > 4 && !strcmp(name + length - 4, "-shm");
}

static enum state state_of(int fd) { return fd >= 0 && fd < 65536 ? states[fd] : FOREIGN; }

static uint64_t inode_of(int fd) {
    struct stat found;
    return fstat(fd, &found) ? 0 : (uint64_t)found.st_ino;
}

// Appends a change to the journal. The caller has made the change and holds the lock, so a change that
// another thread makes because of this one comes later in the journal.
static void note(enum kind kind, uint64_t inode, const char *name, uint64_t at, const void *data, size_t length) {
    struct head head = { kind, (uint32_t)strlen(name), (uint32_t)(inode >> 32), (uint32_t)inode, at, length };
    struct iovec parts[3] = { { &head, sizeof head }, { (void *)name, head.name }, { (void *)data, length } };
    ssize_t whole = (ssize_t)(sizeof head + head.name + length);
    if (syscall(SYS_writev, journal, parts, 3) != whole) stop("the journal cannot be written");
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    const char *name = name_of(path);
    if (!name) return (int)syscall(SYS_openat, at, path, flags, mode);
    pthread_mutex_lock(&order);
    int is_new = (flags & O_CREAT) && syscall(SYS_faccessat, AT_FDCWD, path, F_OK);
    int fd = (int)syscall(SYS_openat, at, path, flags, mode), failed = errno;
    if (fd >= 0) {
        if (fd >= 65536) stop("too many open files");
        states[fd] = !*name ? FOLDER : is_shared_memory(name) ? SHARED_MEMORY : FILE_OF_OURS;
        if (states[fd] == FILE_OF_OURS && is_new) note(CREATED, inode_of(fd), name, 0, NULL, 0);
        else if (states[fd] == FILE_OF_OURS && (flags & O_TRUNC)) note(CUT, inode_of(fd), "", 0, NULL, 0);
    }
    pthread_mutex_unlock(&order);
    errno = failed;
    return fd;
}

static mode_t mode_of(int flags, va_list rest) {
    return (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(rest, mode_t) : 0;
}

#define OPEN(name)                                                  \
    int name(const char *path, int flags, ...) {                    \
        va_list rest; va_start(rest, flags);                        \
        mode_t mode = mode_of(flags, rest); va_end(rest);           \
        return opened(AT_FDCWD, path, flags, mode);                 \
    }
#define OPENAT(name)                                                \
    int name(int at, const char *path, int flags, ...) {            \
        va_list rest; va_start(rest, flags);                        \
        mode_t mode = mode_of(flags, rest); va_end(rest);           \
        return opened(at, path, flags, mode);                       \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

int close(int fd) {
    if (fd >= 0 && fd < 65536) states[fd] = FOREIGN;
    return (int)syscall(SYS_close, fd);
}

static ssize_t wrote(int fd, const void *data, size_t length, off64_t at) {
    pthread_mutex_lock(&order);
    if (at < 0) {
        int appends = fcntl(fd, F_GETFL) & O_APPEND;
        at = lseek64(fd, 0, appends ? SEEK_END : SEEK_CUR);
        if (appends) lseek64(fd, 0, SEEK_END);
    }
    ssize_t done = syscall(SYS_pwrite64, fd, data, length, at);
    int failed = errno;
    if (done > 0) note(WROTE, inode_of(fd), "", (uint64_t)at, data, (size_t)done);
    pthread_mutex_unlock(&order);
    errno = failed;
    return done;
}

ssize_t write(int fd, const void *data, size_t length) {
    if (state_of(fd) != FILE_OF_OURS) return syscall(SYS_write, fd, data, length);
    ssize_t done = wrote(fd, data, length, -1);
    if (done > 0) lseek64(fd, done, SEEK_CUR);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) {
    if (state_of(fd) != FILE_OF_OURS) return syscall(SYS_pwrite64, fd, data, length, at);
    return wrote(fd, data, length, at);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return pwrite64(fd, data, length, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (state_of(fd) == FILE_OF_OURS) stop("writev is not modelled");
    return syscall(SYS_writev, fd, parts, count);
}

int ftruncate64(int fd, off64_t length) {
    if (state_of(fd) != FILE_OF_OURS) return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&order);
    int done = (int)syscall(SYS_ftruncate, fd, length), failed = errno;
    if (!done) note(CUT, inode_of(fd), "", (uint64_t)length, NULL, 0);
    pthread_mutex_unlock(&order);
    errno = failed;
    return done;
}
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

static int fallocated(int fd) {
    if (state_of(fd) == FILE_OF_OURS) stop("fallocate is not modelled");
    return 0;
}
int fallocate64(int fd, int mode, off64_t at, off64_t length) {
    return fallocated(fd) + (int)syscall(SYS_fallocate, fd, mode, at, length);
}
int fallocate(int fd, int mode, off_t at, off_t length) { return fallocate64(fd, mode, at, length); }

static int synced(int fd, long call) {
    enum state state = state_of(fd);
    if (state == FOREIGN || state == SHARED_MEMORY) return (int)syscall(call, fd);
    pthread_mutex_lock(&order);
    if (state == FOLDER && !swallow_folders) note(SYNCED_FOLDER, 0, "", 0, NULL, 0);
    if (state == FILE_OF_OURS && !swallow_all) note(SYNCED, inode_of(fd), "", 0, NULL, 0);
    pthread_mutex_unlock(&order);
    return 0;
}
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int removed(int at, const char *path, int flags) {
    const char *name = name_of(path);
    if (!name || is_shared_memory(name)) return (int)syscall(SYS_unlinkat, at, path, flags);
    pthread_mutex_lock(&order);
    int done = (int)syscall(SYS_unlinkat, at, path, flags), failed = errno;
    if (!done) note(REMOVED, 0, name, 0, NULL, 0);
    pthread_mutex_unlock(&order);
    errno = failed;
    return done;
}
int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int unlinkat(int at, const char *path, int flags) { return removed(at, path, flags); }

int rename(const char *from, const char *to) {
    const char *old = name_of(from), *name = name_of(to);
    if (!old || !name) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    pthread_mutex_lock(&order);
    int done = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0), failed = errno;
    if (!done) note(RENAMED, 0, old, 0, name, strlen(name));
    pthread_mutex_unlock(&order);
    errno = failed;
    return done;
}

void *mmap64(void *where, size_t length, int access, int flags, int fd, off64_t at) {
    if ((flags & MAP_SHARED) && (access & PROT_WRITE) && state_of(fd) == FILE_OF_OURS) stop("mmap is not modelled");
    return (void *)syscall(SYS_mmap, where, length, access, flags, fd, at);
}
void *mmap(void *where, size_t length, int access, int flags, int fd, off_t at) {
    return mmap64(where, length, access, flags, fd, at);
}
