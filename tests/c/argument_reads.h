/* Included before csrc/, so that the test can intercept every read of an argument. */
#include <stdint.h>

int64_t read_argument(const int64_t *p);

#define TH_READ(p) read_argument(p)

/* Counts comparisons of keys. */
extern unsigned long compared;

#define TH_COMPARED() (void)compared++
