/* Included before csrc/, so that the test can intercept every read of an argument. */
#include <stdint.h>

int64_t read_argument(const int64_t *p);

#define TH_READ(p) read_argument(p)

/* So that pops follow the path of the pop before also in small heaps. */
#define TH_LARGE 9

/* Counts comparisons of keys. */
extern unsigned long compared;

#define TH_COMPARED() (void)compared++
