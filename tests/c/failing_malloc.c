/* Preloaded over glibc's allocator: the n-th allocation after `countdown` is set to n fails. */
#include <errno.h>
#include <stddef.h>

long countdown, fired;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static int fails(void) {
    if (!countdown || --countdown) return 0;
    fired++;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }

void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }

void *realloc(void *p, size_t size) { return fails() ? NULL : __libc_realloc(p, size); }

void *aligned_alloc(size_t alignment, size_t size) { return fails() ? NULL : __libc_memalign(alignment, size); }

int posix_memalign(void **p, size_t alignment, size_t size) {
    if (fails()) return ENOMEM;
    void *memory = __libc_memalign(alignment, size);
    if (memory) *p = memory;
    return memory ? 0 : ENOMEM;
}
