/* Rows as codes: bytes whose order, as memcmp has it, is the order of the rows, and from which the rows are read again.
 *
 * It follows the rules of th_heap.h: C11, no allocation, one thread at a time. A format says how the values of one type
 * become codes, field by field: a struct is a field, followed by its own. Null equals null, NaN equals NaN and is the
 * largest number, and -0.0 is not 0.0. No code begins with a different code of the same format. */
#ifndef TH_CODE_H
#define TH_CODE_H

#include "th_array.h"

#define TH_CODE_MAX UINT32_MAX /* bytes of a code */
#define TH_LEAD_MAX 64 /* fields of a lead */

typedef enum th_code_kind {
    TH_OF_FIELDS, /* a struct, whose fields follow */
    TH_OF_NOTHING, /* always null */
    TH_OF_BIT,
    TH_OF_SIGNED, /* an integer in two's complement, of `width` bytes, the lowest first */
    TH_OF_UNSIGNED,
    TH_OF_FLOAT, /* IEEE 754, of 4 or 8 bytes */
    TH_OF_BYTES, /* `width` bytes */
    TH_OF_TEXT /* bytes between two offsets */
} th_code_kind;

typedef struct th_field {
    uint8_t kind, descending, nulls_last;
    uint16_t width;
    uint32_t span; /* the number of fields up to the end of a struct, itself included; 1 for others */
} th_field;

/* The first `lead` fields order the rows as ORDER BY does, for which -0.0 equals 0.0. The others only tell apart rows
 * whose leads are equal. The first field has the whole value; fields that follow a struct end with it. */
typedef struct th_format {
    const th_field *field;
    size_t fields, lead;
} th_format;

/* Returns whether a format is one: spans are nested in each other, kinds and widths fit, and the lead ends with a
 * field. */
bool th_format_check(const th_format *f);

/* n codes one after the other: code i is from offset[i] to offset[i + 1]. */
typedef struct th_codes {
    const uint8_t *data;
    const int64_t *offset;
    size_t n;
} th_codes;

/* Returns whether the offsets are in order, within `size` bytes, and none of the codes is longer than TH_CODE_MAX. */
bool th_codes_check(const th_codes *codes, size_t size);

/* Writes the n + 1 offsets of the codes of n rows; `column` has an array for each field, that of a struct without data.
 * Returns TH_YES; TH_CORRUPT if an offset of text lies outside of its data; or TH_FULL if a code would be too long. */
th_status th_code_measure(const th_format *f, const th_array *column, size_t n, int64_t *offset);

/* Writes the codes of n rows, whose offsets th_code_measure has written. Returns TH_CORRUPT if the rows have changed.
 */
th_status th_code_write(const th_format *f, const th_array *column, size_t n, const int64_t *offset, uint8_t *to);

/* Returns the size of the lead of a code, which orders it; SIZE_MAX if these bytes are no code. */
size_t th_code_lead(const th_format *f, const uint8_t *code, size_t size);

/* Where th_code_read writes the values of a field: zeroed bytes, as Arrow has them, with 64-bit offsets. */
typedef struct th_values {
    uint8_t *valid; /* a bitmap */
    uint8_t *data; /* of text `size` bytes, of bits a bitmap */
    int64_t *offset; /* of text, n + 1 */
    uint64_t size, nulls;
} th_values;

/* Sets the size of each text field, and the number of nulls of each field, in `values`. Returns TH_YES, or TH_CORRUPT
 * if the bytes are no codes of this format. */
th_status th_code_sizes(const th_format *f, const th_codes *codes, th_values *values);

/* Writes the values of codes, of which th_code_sizes has returned TH_YES. */
void th_code_read(const th_format *f, const th_codes *codes, th_values *values);

/* Rows with numbers of their own (ids), and what their weights change by. */
typedef struct th_weighted {
    const int64_t *id, *weight;
    th_codes codes;
} th_weighted;

/* A row on its way to its place in the order. */
typedef struct th_placed {
    int64_t id;
    uint64_t head;
    size_t row;
} th_placed;

/* Adds the weights of equal rows up: writes the first row of each in row[] and the sums in sum[], by id and then by
 * code, and returns how many these are; SIZE_MAX if a sum is beyond INT64_MAX or not above INT64_MIN. `scratch` has
 * room for 2 n. The codes must be sound. */
size_t th_code_add_up(const th_weighted *rows, th_placed *scratch, int64_t *row, int64_t *sum);

#endif
