"""Libraries that are loaded before a program's own, and lie to it about the clock or the disk.

Compiled by the C compiler of the machine. A shim does nothing until its flag, a file, exists:

    clock_ahead    the wall clock is an hour ahead
    disk_error     writing or syncing a file named like an SQLite database fails with EIO
    disk_full      writing a file of a PostgreSQL database, which is in base/, fails with ENOSPC
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CLOCK_AHEAD = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long ahead(void) {
    const char *flag = getenv("SHIM_FLAG");
    return flag && access(flag, F_OK) == 0 ? 3600 : 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
    struct timespec now;
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(CLOCK_REALTIME, &now);
    tv->tv_sec = now.tv_sec + ahead();
    tv->tv_usec = now.tv_nsec / 1000;
    return code;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(id, ts);
    if (code == 0 && id == CLOCK_REALTIME) ts->tv_sec += ahead();
    return code;
}
"""

DISK_ERROR = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int fd) {
    const char *flag = getenv("SHIM_FLAG");
    char link[64], path[4096];
    if (!flag || access(flag, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    if (!strstr(path, ".db")) return 0;
    errno = EIO;
    return 1;
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite");
    return fails(fd) ? -1 : real(fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    return fails(fd) ? -1 : real(fd, data, count, at);
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    return fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    return fails(fd) ? -1 : real(fd);
}
"""


DISK_FULL = (
    DISK_ERROR.replace('strstr(path, ".db")', 'strstr(path, "/base/")')
    .replace("EIO", "ENOSPC")
    .replace("return fails(fd) ? -1 : real(fd);", "return real(fd);")
    + r"""
#include <sys/uio.h>

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwritev");
    return fails(fd) ? -1 : real(fd, parts, count, at);
}

int posix_fallocate(int fd, off_t at, off_t count) {
    static int (*real)(int, off_t, off_t);
    if (!real) real = dlsym(RTLD_NEXT, "posix_fallocate");
    return fails(fd) ? ENOSPC : real(fd, at, count);
}
"""
)


class Shim:
    """A library, built in `folder`. `on` and `off` switch it; `environment` loads it."""

    def __init__(self, folder: Path, name: str, source: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.flag = folder / f"{name}.on"
        library, text = folder / f"{name}.so", folder / f"{name}.c"
        text.write_text(source)
        compiler = shutil.which("cc") or "gcc"
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, text, "-ldl"], check=True)
        self.environment = {"LD_PRELOAD": str(library), "SHIM_FLAG": str(self.flag)}

    def on(self) -> None:
        self.flag.touch()

    def off(self) -> None:
        self.flag.unlink(missing_ok=True)


def no_compiler() -> bool:
    """True if the machine has no C compiler."""
    return shutil.which("cc") is None and shutil.which("gcc") is None
