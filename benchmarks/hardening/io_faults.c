/* Preloaded into a command: counts its calls that change files below a folder, and lets one fail.
 *
 * The process that loads it arms it with `faults_arm` and forks; state is shared with its children.
 * A failed write has written half of its bytes, as on a disk that is full.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE, SYNC, RENAME, CREATE, REMOVE, KINDS };

static struct {
    char root[PATH_MAX];
    int armed, kinds, error, for_ever;
    long at, counted, each[KINDS], failed;
} *shared;

__attribute__((constructor)) static void begin(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* kinds: bits of the kinds that count; at: which call fails, from 1, or 0 for none; error: its
 * error number, or 0 for SIGKILL to the process group; for_ever: whether all later ones fail too. */
void faults_arm(const char *root, int kinds, long at, int error, int for_ever) {
    memset(shared, 0, sizeof *shared);
    strncpy(shared->root, root, PATH_MAX - 1);
    shared->kinds = kinds, shared->at = at, shared->error = error, shared->for_ever = for_ever;
    shared->armed = 1;
}

void faults_disarm(void) { shared->armed = 0; }
long faults_counted(void) { return shared->counted; }
long faults_of_kind(int kind) { return shared->each[kind]; }
long faults_failed(void) { return shared->failed; }

static int below(const char *path) {
    size_t length = strlen(shared->root);
    return strncmp(path, shared->root, length) == 0 && (path[length] == '/' || !path[length]);
}

static int below_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int below_at(int fd, const char *path) {
    return path[0] == '/' || fd == AT_FDCWD ? below(path) : below_fd(fd);
}

/* Returns whether this call fails; errno is then set. */
static int fails(int kind, int here) {
    if (!shared || !shared->armed || !here) return 0;
    __sync_add_and_fetch(&shared->each[kind], 1);
    if (!(shared->kinds & 1 << kind)) return 0;
    long n = __sync_add_and_fetch(&shared->counted, 1);
    if (!shared->at || n < shared->at || (n > shared->at && !shared->for_ever)) return 0;
    __sync_add_and_fetch(&shared->failed, 1);
    errno = shared->error;
    return 1;
}

static int stop(void) {
    if (!shared->error) {
        kill(0, SIGKILL);
        for (;;) pause();
    }
    errno = shared->error;
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ON_FILE(kind, result, name, declaration, arguments, half)                                 \
    result name declaration {                                                                     \
        static __typeof__(&name) real;                                                            \
        if (!real) real = REAL(name);                                                             \
        if (shared && shared->armed && fails(kind, below_fd(fd))) {                               \
            half;                                                                                 \
            return stop();                                                                        \
        }                                                                                         \
        return real arguments;                                                                    \
    }

ON_FILE(WRITE, ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size),
        if (size > 1) real(fd, data, size / 2))
ON_FILE(WRITE, ssize_t, pwrite, (int fd, const void *data, size_t size, off_t offset),
        (fd, data, size, offset), if (size > 1) real(fd, data, size / 2, offset))
ON_FILE(WRITE, ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t offset),
        (fd, data, size, offset), if (size > 1) real(fd, data, size / 2, offset))
ON_FILE(WRITE, ssize_t, writev, (int fd, const struct iovec *parts, int count),
        (fd, parts, count), if (count > 1) real(fd, parts, count / 2))
ON_FILE(WRITE, ssize_t, sendfile, (int fd, int in, off_t *offset, size_t size),
        (fd, in, offset, size), )
ON_FILE(WRITE, ssize_t, sendfile64, (int fd, int in, off64_t *offset, size_t size),
        (fd, in, offset, size), )
ON_FILE(WRITE, ssize_t, copy_file_range,
        (int in, off64_t *from, int fd, off64_t *to, size_t size, unsigned flags),
        (in, from, fd, to, size, flags), )
ON_FILE(WRITE, int, ftruncate, (int fd, off_t size), (fd, size), )
ON_FILE(WRITE, int, ftruncate64, (int fd, off64_t size), (fd, size), )
ON_FILE(SYNC, int, fsync, (int fd), (fd), )
ON_FILE(SYNC, int, fdatasync, (int fd), (fd), )

#define ON_PATH(kind, name, declaration, arguments, here)                                         \
    int name declaration {                                                                        \
        static __typeof__(&name) real;                                                            \
        if (!real) real = REAL(name);                                                             \
        if (shared && shared->armed && fails(kind, here)) return stop();                          \
        return real arguments;                                                                    \
    }

ON_PATH(RENAME, rename, (const char *from, const char *to), (from, to), below(to))
ON_PATH(RENAME, renameat, (int from_fd, const char *from, int fd, const char *to),
        (from_fd, from, fd, to), below_at(fd, to))
ON_PATH(RENAME, renameat2, (int from_fd, const char *from, int fd, const char *to, unsigned flags),
        (from_fd, from, fd, to, flags), below_at(fd, to))
ON_PATH(CREATE, mkdir, (const char *path, mode_t mode), (path, mode), below(path))
ON_PATH(CREATE, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode),
        below_at(fd, path))
ON_PATH(CREATE, link, (const char *from, const char *path), (from, path), below(path))
ON_PATH(CREATE, linkat, (int from_fd, const char *from, int fd, const char *path, int flags),
        (from_fd, from, fd, path, flags), below_at(fd, path))
ON_PATH(CREATE, symlink, (const char *from, const char *path), (from, path), below(path))
ON_PATH(REMOVE, unlink, (const char *path), (path), below(path))
ON_PATH(REMOVE, unlinkat, (int fd, const char *path, int flags), (fd, path, flags),
        below_at(fd, path))
ON_PATH(REMOVE, rmdir, (const char *path), (path), below(path))

#define OPENS(name, fd, declaration, arguments)                                                   \
    int name declaration {                                                                        \
        static int(*real) declaration;                                                            \
        if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, #name);                              \
        va_list rest;                                                                             \
        va_start(rest, flags);                                                                    \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                   \
        va_end(rest);                                                                             \
        if (flags & O_CREAT && shared && shared->armed && fails(CREATE, below_at(fd, path)))      \
            return stop();                                                                        \
        return real arguments;                                                                    \
    }

OPENS(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, fd, (int fd, const char *path, int flags, ...), (fd, path, flags, mode))
OPENS(openat64, fd, (int fd, const char *path, int flags, ...), (fd, path, flags, mode))
