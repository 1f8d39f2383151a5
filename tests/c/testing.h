/* What the tests share. */
#ifndef TESTING_H
#define TESTING_H

#include "th_private.h"

#include <stdio.h>
#include <stdlib.h>

extern uint64_t seed;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not %s (SEED=%llu)\n", __FILE__, __LINE__, #condition, (unsigned long long)seed);  \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* If not NULL, arguments are overwritten with its results as soon as they have been read (argument_reads.h). */
extern int64_t (*other_argument)(void);

uint64_t next(void);
size_t below(size_t n);
void *memory(size_t size);

/* Returns memory of exactly `size` bytes, a multiple of 64, aligned to 64. */
void *lines(size_t size);

void test_table(size_t steps);

void test_array(size_t steps);

void test_pack(size_t steps);

void test_group(size_t steps);

void test_text(size_t steps);

void test_tree(size_t steps);

void test_stores(void);

void test_run(size_t steps);

#endif
