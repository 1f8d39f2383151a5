/* Included before csrc/: the test looks on, and may write, whenever an argument is read. */
#include <stdint.h>

int64_t read_argument(const int64_t *p);

#define TH_READ(p) read_argument(p)
