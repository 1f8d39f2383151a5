/* Preloaded: memory pages of 64 KiB, as on some aarch64, whose `madvise` keeps its last request for huge pages. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 64 << 10 };

uintptr_t huge_start, huge_size;

long sysconf(int name) {
    long (*own)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
    return name == _SC_PAGESIZE ? PAGE : own(name);
}

int madvise(void *start, size_t size, int advice) {
    if (advice != MADV_HUGEPAGE) {
        int (*own)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "madvise");
        return own(start, size, advice);
    }
    huge_start = (uintptr_t)start, huge_size = size;
    if (!(huge_start % PAGE)) return 0;
    errno = EINVAL;
    return -1;
}
