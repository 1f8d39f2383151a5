/* Packs random arrays, and compares every row with where a plain loop puts it. */
#include "testing.h"
#include "th_pack.h"

#define MOST 200
#define RANKS 5

/* Random values of one kind, in memory of exactly the size that they need. */
static th_array make(th_kind kind, unsigned width, size_t n) {
    size_t start = below(20), all = start + n, bits = (all + 7) / 8, size = kind == TH_BITS ? bits : all * width;
    uint8_t *valid = memory(bits), *offset = NULL, *data;
    for (size_t i = 0; i < bits; i++) valid[i] = (uint8_t)next();
    if (kind == TH_TEXT) {
        offset = memory((all + 1) * width);
        size = 0;
        for (size_t i = 0; i <= all; i++) {
            uint64_t end = size += i ? below(below(9) ? 20 : 300) : 0;
            memcpy(offset + i * width, &end, width);
        }
    }
    data = memory(size);
    for (size_t i = 0; i < size; i++) data[i] = (uint8_t)next();
    if (kind == TH_FIXED && width == 8 && below(2)) /* a small range */
        for (size_t i = 0; i < all; i++) data[i * 8 + 7] = data[i * 8 + 6] = data[i * 8 + 5] = 0x80;
    if (below(2)) free(valid), valid = NULL;
    return (th_array){kind, width, start, n, valid, offset, data, size};
}

static void drop(th_array a) { free((void *)a.valid), free((void *)a.offset), free((void *)a.data); }

static bool bit(const uint8_t *bits, size_t i) { return bits[i / 8] >> i % 8 & 1; }

static bool valid(const th_array *a, size_t i) { return !a->valid || bit(a->valid, a->start + i); }

static uint64_t number(const uint8_t *at, unsigned width) {
    uint64_t x = 0;
    memcpy(&x, at, width); /* little-endian, as this machine is */
    return x;
}

static uint64_t text_end(const th_array *a, size_t i) {
    return number(a->offset + (a->start + i) * a->width, a->width);
}

/* What one rank got. */
typedef struct got {
    uint8_t *valid, *value, *text;
    size_t n;
} got;

static void same(const th_array *a, size_t i, const th_target *t, got *g, size_t *text) {
    size_t row = g->n++;
    bool held = valid(a, i);
    if (g->valid) CHECK(bit(g->valid, row) == held);
    if (a->kind == TH_BITS) {
        CHECK(bit(g->value, row) == bit(a->data, a->start + i));
    } else if (a->kind == TH_TEXT) {
        size_t from = held ? text_end(a, i) : 0, size = held ? text_end(a, i + 1) - from : 0;
        CHECK(number(g->value + row * t->width, t->width) == size);
        CHECK(!size || !memcmp(g->text + *text, a->data + from, size));
        *text += size;
    } else if (a->kind == TH_FIXED && a->width == 8) {
        uint64_t x = number(a->data + (a->start + i) * 8, 8);
        if (held) CHECK(number(g->value + row * t->width, t->width) + (uint64_t)t->base == x);
    } else {
        CHECK(!memcmp(g->value + row * t->width, a->data + (a->start + i) * a->width, a->width));
    }
}

static unsigned fewest(uint64_t x) { return x < 1 << 8 ? 1 : x < 1 << 16 ? 2 : x <= UINT32_MAX ? 4 : 8; }

/* Gives each rank exactly the memory that it has asked for. */
static void aim(const th_array *a, const th_need *need, size_t rows, th_target *t, got *g) {
    size_t bits = (rows + 7) / 8;
    *t = (th_target){.width = a->width};
    if (a->kind == TH_TEXT) t->width = fewest(need->longest);
    if (a->kind == TH_FIXED && a->width == 8 && need->low <= need->high) {
        t->width = fewest((uint64_t)need->high - (uint64_t)need->low);
        t->base = t->width < 8 ? need->low : 0;
    }
    size_t size = a->kind == TH_BITS ? bits : rows * t->width;
    *g = (got){need->nulls ? memory(bits) : NULL, memory(size), memory(need->size), 0};
    if (g->valid) memset(g->valid, 0, bits);
    if (a->kind == TH_BITS) memset(g->value, 0, bits);
    t->valid = g->valid, t->value = g->value, t->text = g->text, t->end = g->text + need->size;
}

static void packs(th_kind kind, unsigned width) {
    th_array a = make(kind, width, below(MOST));
    int64_t *hash = memory(a.n * sizeof *hash);
    uint16_t *rank = memory(a.n * sizeof *rank), rank_of[64];
    uint64_t count[RANKS] = {0}, counted[RANKS] = {0};
    size_t groups = 1 + below(64), text[RANKS] = {0};
    for (size_t g = 0; g < groups; g++) rank_of[g] = (uint16_t)below(RANKS);
    for (size_t i = 0; i < a.n; i++) hash[i] = (int64_t)next();
    th_pack_rank(hash, a.n, groups, rank_of, rank, count);
    for (size_t i = 0; i < a.n; i++) {
        int64_t left = hash[i] % (int64_t)groups;
        CHECK(rank[i] == rank_of[left < 0 ? left + (int64_t)groups : left]);
        counted[rank[i]]++;
    }
    CHECK(!memcmp(count, counted, sizeof count));
    th_need need[RANKS];
    th_target target[RANKS];
    got g[RANKS];
    bool nulls = false;
    for (size_t r = 0; r < RANKS; r++) need[r] = (th_need){.low = INT64_MAX, .high = INT64_MIN};
    CHECK(th_pack_measure(&a, rank, need) == TH_YES);
    for (size_t r = 0; r < RANKS; r++) aim(&a, &need[r], count[r], &target[r], &g[r]), nulls |= need[r].nulls != 0;
    CHECK(th_pack_put(&a, rank, nulls, target) == TH_YES);
    for (size_t i = 0; i < a.n; i++) same(&a, i, &target[rank[i]], &g[rank[i]], &text[rank[i]]);
    for (size_t r = 0; r < RANKS; r++) CHECK(g[r].n == count[r] && text[r] == need[r].size);
    for (size_t r = 0; r < RANKS; r++) free(g[r].valid), free(g[r].value), free(g[r].text);
    drop(a), free(hash), free(rank);
}

/* Offsets that are no offsets are noticed before anything is read, also if they change after they were measured. */
static void hostile_offsets(unsigned width) {
    th_array a = make(TH_TEXT, width, 1 + below(MOST));
    uint16_t *rank = memory(a.n * sizeof *rank);
    int64_t *hash = memory(a.n * sizeof *hash);
    memset(rank, 0, a.n * sizeof *rank);
    th_need need = {.low = 0};
    th_target target;
    got g;
    uint8_t *byte = (uint8_t *)a.offset + below((a.start + a.n + 1) * width);
    if (below(2)) {
        CHECK(th_pack_measure(&a, rank, &need) == TH_YES);
        aim(&a, &need, a.n, &target, &g);
        *byte = (uint8_t)next();
        th_pack_put(&a, rank, need.nulls != 0, &target);
        free(g.valid), free(g.value), free(g.text);
    } else {
        *byte = (uint8_t)next();
        th_pack_measure(&a, rank, &need);
    }
    th_pack_hash(&a, hash);
    drop(a), free(rank), free(hash);
}

/* Hashes are those of XXH64 over the bytes that Spark hashes. */
static void hashes(th_kind kind, unsigned width) {
    th_array a = make(kind, width, below(MOST));
    int64_t *hash = memory(a.n * sizeof *hash);
    for (size_t i = 0; i < a.n; i++) hash[i] = 42;
    CHECK(th_pack_hash(&a, hash) == TH_YES);
    for (size_t i = 0; i < a.n; i++) {
        th_xxh64 x;
        const uint8_t *at = a.data + (a.start + i) * width;
        size_t size = width;
        int32_t four = width == 1 ? (int8_t)*at : width == 2 ? (int16_t)number(at, 2) : 0;
        if (kind == TH_TEXT) {
            at = a.data + text_end(&a, i);
            size = text_end(&a, i + 1) - text_end(&a, i);
        } else if (width < 4) {
            at = (uint8_t *)&four;
            size = 4;
        }
        th_xxh64_begin(&x, 42);
        th_xxh64_add(&x, at, size);
        CHECK((uint64_t)hash[i] == (valid(&a, i) ? th_xxh64_end(&x) : 42));
    }
    drop(a), free(hash);
}

static void reads(unsigned width) {
    size_t n = below(MOST);
    uint8_t *from = memory(n * width);
    int64_t base = (int64_t)next(), *to = memory((n + 1) * sizeof *to);
    uint64_t sum = 0;
    for (size_t i = 0; i < n * width; i++) from[i] = (uint8_t)next();
    for (size_t i = 0; i < n; i++) sum += number(from + i * width, width);
    th_pack_widen(from, width, base, n, to);
    for (size_t i = 0; i < n; i++) CHECK((uint64_t)to[i] - (uint64_t)base == number(from + i * width, width));
    int32_t *offset = memory((n + 1) * sizeof *offset);
    CHECK(th_pack_offsets(from, width, n, sum + 1, offset) == TH_CORRUPT);
    if (sum > INT32_MAX) {
        CHECK(th_pack_offsets(from, width, n, sum, offset) == TH_CORRUPT);
    } else {
        CHECK(th_pack_offsets(from, width, n, sum, offset) == TH_YES);
        for (size_t i = 0; i < n; i++) CHECK((uint64_t)(offset[i + 1] - offset[i]) == number(from + i * width, width));
    }
    free(from), free(to), free(offset);
}

void test_pack(size_t steps) {
    static const unsigned widths[] = {1, 2, 3, 4, 8, 16, 17};
    for (size_t done = 0; done < steps; done += 200) {
        packs(TH_BITS, 0);
        packs(TH_FIXED, widths[below(7)]);
        packs(TH_FIXED, 8);
        packs(TH_FLOAT, below(2) ? 4 : 8);
        packs(TH_TEXT, below(2) ? 4 : 8);
        hashes(TH_TEXT, below(2) ? 4 : 8);
        hashes(TH_FIXED, 1u << below(4));
        hostile_offsets(below(2) ? 4 : 8);
        reads(1u << below(3));
    }
}
