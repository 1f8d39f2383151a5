/* Passes the coverage of the compiled heap to libFuzzer. With -fsanitize-coverage=trace-pc, gcc calls a function in
 * each basic block, where clang increments a counter. This library must be preloaded before the sanitizers, which
 * define empty functions with these names; `attach` passes the counters to the libFuzzer in atheris. */
#include <stdint.h>

#define COUNTERS (1 << 16)

typedef void compare8(uint64_t, uint64_t);
typedef void compare4(uint32_t, uint32_t);
typedef void compare_switch(uint64_t, uint64_t *);

static uint8_t counters[COUNTERS];
static compare8 *cmp8, *const_cmp8;
static compare4 *cmp4, *const_cmp4;
static compare_switch *trace_switch;

void attach(void (*counters_init)(uint8_t *, uint8_t *), compare8 *c8, compare8 *cc8, compare4 *c4, compare4 *cc4,
            compare_switch *s) {
    cmp8 = c8, const_cmp8 = cc8, cmp4 = c4, const_cmp4 = cc4, trace_switch = s;
    counters_init(counters, counters + COUNTERS);
}

void __sanitizer_cov_trace_pc(void) {
    uint64_t place = (uint64_t)(uintptr_t)__builtin_return_address(0);
    uint8_t *counter = &counters[place * 0x9E3779B97F4A7C15 >> 48];
    *counter += *counter < UINT8_MAX;
}

/* Tail calls, so that libFuzzer sees the address of the comparison. Comparisons of bytes and shorts are ignored. */
void __sanitizer_cov_trace_cmp8(uint64_t a, uint64_t b) {
    if (cmp8) cmp8(a, b);
}
void __sanitizer_cov_trace_const_cmp8(uint64_t a, uint64_t b) {
    if (const_cmp8) const_cmp8(a, b);
}
void __sanitizer_cov_trace_cmp4(uint32_t a, uint32_t b) {
    if (cmp4) cmp4(a, b);
}
void __sanitizer_cov_trace_const_cmp4(uint32_t a, uint32_t b) {
    if (const_cmp4) const_cmp4(a, b);
}
void __sanitizer_cov_trace_switch(uint64_t value, uint64_t *cases) {
    if (trace_switch) trace_switch(value, cases);
}
void __sanitizer_cov_trace_cmp1(uint8_t a, uint8_t b) { (void)a, (void)b; }
void __sanitizer_cov_trace_cmp2(uint16_t a, uint16_t b) { (void)a, (void)b; }
void __sanitizer_cov_trace_const_cmp1(uint8_t a, uint8_t b) { (void)a, (void)b; }
void __sanitizer_cov_trace_const_cmp2(uint16_t a, uint16_t b) { (void)a, (void)b; }
void __sanitizer_cov_trace_cmpd(double a, double b) { (void)a, (void)b; }
void __sanitizer_cov_trace_cmpf(float a, float b) { (void)a, (void)b; }
