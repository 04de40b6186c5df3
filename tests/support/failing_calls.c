/* Real system calls that fail, stop half-way or kill the process: preloaded into a process, armed in its forks.

Calls of the main thread on files under one folder are counted by kind and written into a log, one line each. The chosen
one fails with an error number, writes half, or kills the process before or after it. All other calls pass.

A file that a rename or an unlink takes away gets a second link in the folder `shadows`, named after the line of the log,
so that a test can undo what a lost power supply would undo. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define DESCRIPTORS 4096
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum action { COUNT, FAIL, FAIL_FROM_HERE, HALF, KILL_BEFORE, KILL_AFTER };
enum decision { PASS, STOP, WRITE_HALF, THEN_KILL };

static char folder[PATH_MAX], shadows[PATH_MAX], chosen_kind[32];
static long chosen_number, seen, lines;
static int chosen_error, chosen_action, armed, log_descriptor = -1;
static char *path_of[DESCRIPTORS];

void arm(const char *where, const char *kind, long number, int action, int error, const char *log, const char *kept)
{
    snprintf(folder, sizeof folder, "%s/", where);
    snprintf(shadows, sizeof shadows, "%s", kept);
    snprintf(chosen_kind, sizeof chosen_kind, "%s", kind);
    chosen_number = number, chosen_action = action, chosen_error = error;
    log_descriptor = REAL(open64)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    armed = log_descriptor >= 0;
}

static int watched(const char *path)
{
    size_t length = strlen(folder);
    return armed && path && gettid() == getpid() &&
           (!strncmp(path, folder, length) || (!strncmp(path, folder, length - 1) && !path[length - 1]));
}

static const char *known(int descriptor)
{
    return armed && descriptor >= 0 && descriptor < DESCRIPTORS ? path_of[descriptor] : NULL;
}

static void note(const char *mark, const char *kind, const char *path, const char *other)
{
    char line[2 * PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\t%s\n", mark, kind, path, other ? other : "");
    (void)!REAL(write)(log_descriptor, line, (size_t)length);
    lines++;
}

/* What to do with this call; `done` notes how a call that was let through ended. */
static enum decision decide(const char *kind, const char *path, const char *other)
{
    if (strcmp(kind, chosen_kind) || chosen_action == COUNT) return PASS;
    long number = seen++;
    if (number != chosen_number && !(chosen_action == FAIL_FROM_HERE && number > chosen_number)) return PASS;
    note("injected", kind, path, other);
    switch (chosen_action) {
    case HALF: return WRITE_HALF;
    case KILL_AFTER: return THEN_KILL;
    case KILL_BEFORE: kill(getpid(), SIGKILL); /* falls through: never */
    default: errno = chosen_error; return STOP;
    }
}

static void done(enum decision decision, int failed, const char *kind, const char *path, const char *other)
{
    int kept = errno;
    note(failed ? "refused" : "done", kind, path, other);
    if (decision == THEN_KILL) kill(getpid(), SIGKILL);
    errno = kept;
}

/* A second link to what is about to go, under the number that the call's line in the log will have. */
static void keep(const char *path)
{
    char kept[PATH_MAX + 32];
    int error = errno;
    snprintf(kept, sizeof kept, "%s/%ld", shadows, lines);
    (void)!link(path, kept);
    errno = error;
}

#define CALL(kind, path, other, failed, call)                      \
    enum decision decision = decide(kind, path, other);            \
    if (decision == STOP) return failed;                           \
    __typeof__(failed) result = call;                              \
    done(decision, result == failed, kind, path, other);           \
    return result;

static int opened(const char *path, int flags, mode_t mode)
{
    if (!watched(path)) return REAL(open64)(path, flags, mode);
    int writes = (flags & O_ACCMODE) != O_RDONLY, present = !access(path, F_OK);
    const char *kind = !writes ? "open" : present ? "reopen" : "create";
    enum decision decision = decide(kind, path, NULL);
    if (decision == STOP) return -1;
    int descriptor = REAL(open64)(path, flags, mode);
    if (descriptor >= 0 && descriptor < DESCRIPTORS) {
        free(path_of[descriptor]);
        path_of[descriptor] = strdup(path);
    }
    done(decision, descriptor < 0, kind, path, flags & O_TRUNC ? "empty" : "");
    return descriptor;
}

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(path, flags, mode);
}

int open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return opened(path, flags, mode);
}

int close(int descriptor)
{
    const char *path = known(descriptor);
    if (!watched(path)) return REAL(close)(descriptor);
    enum decision decision = decide("close", path, NULL);
    int result = REAL(close)(descriptor), failed = decision == STOP;
    if (!failed) done(decision, result, "close", path, NULL);
    free(path_of[descriptor]);
    path_of[descriptor] = NULL;
    if (failed) errno = chosen_error;
    return failed ? -1 : result;
}

ssize_t write(int descriptor, const void *content, size_t size)
{
    const char *path = known(descriptor);
    if (!watched(path)) return REAL(write)(descriptor, content, size);
    enum decision decision = decide("write", path, NULL);
    if (decision == STOP) return -1;
    ssize_t result = REAL(write)(descriptor, content, decision == WRITE_HALF && size > 1 ? size / 2 : size);
    done(decision, result < 0, "write", path, NULL);
    return result;
}

ssize_t read(int descriptor, void *content, size_t size)
{
    const char *path = known(descriptor);
    if (!watched(path)) return REAL(read)(descriptor, content, size);
    CALL("read", path, NULL, (ssize_t)-1, REAL(read)(descriptor, content, size))
}

int fsync(int descriptor)
{
    const char *path = known(descriptor);
    if (!watched(path)) return REAL(fsync)(descriptor);
    CALL("fsync", path, NULL, -1, REAL(fsync)(descriptor))
}

int ftruncate64(int descriptor, off64_t size)
{
    const char *path = known(descriptor);
    if (!watched(path)) return REAL(ftruncate64)(descriptor, size);
    CALL("ftruncate", path, NULL, -1, REAL(ftruncate64)(descriptor, size))
}

int flock(int descriptor, int operation)
{
    const char *path = known(descriptor);
    if (!watched(path)) return REAL(flock)(descriptor, operation);
    CALL("flock", path, NULL, -1, REAL(flock)(descriptor, operation))
}

int rename(const char *path, const char *other)
{
    if (!watched(path)) return REAL(rename)(path, other);
    CALL("rename", path, other, -1, (keep(other), REAL(rename)(path, other)))
}

int unlink(const char *path)
{
    if (!watched(path)) return REAL(unlink)(path);
    CALL("unlink", path, NULL, -1, (keep(path), REAL(unlink)(path)))
}

int mkdir(const char *path, mode_t mode)
{
    if (!watched(path)) return REAL(mkdir)(path, mode);
    CALL("mkdir", path, NULL, -1, REAL(mkdir)(path, mode))
}

int rmdir(const char *path)
{
    if (!watched(path)) return REAL(rmdir)(path);
    CALL("rmdir", path, NULL, -1, REAL(rmdir)(path))
}
