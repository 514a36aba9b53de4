/* SPDX-License-Identifier: MIT */
/* Minimum, maximum, mean and SHA-256 of a tensor's elements, for every dtype.
 *
 * Elements are decoded in chunks into doubles, which hold every dtype exactly except 64-bit integers; their minimum
 * and maximum are kept as integers beside. Types of at most 16 bits go through a table of all their values. Each
 * chunk is summed by itself and the sums are added with Neumaier's correction, so the mean of many elements does not
 * drift. The memory is shared: whoever writes it meanwhile gets mixed figures, and nothing worse. */
#include "stats.h"

#include <errno.h>
#include <lend/attributes.h>
#include <math.h>
#include <nettle/sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 4096

/* How the bits of a small float are to be read. */
struct float_format {
    uint8_t code, exponent_bits, mantissa_bits;
    int8_t bias;
    char kind; /* i: infinities and NaNs as IEEE 754; n: all ones are NaN; z: only 100..0 is NaN; f: all are finite */
};

static const struct float_format float_formats[] = {
    {LEND_BFLOAT, 8, 7, 127, 'i'},
    {LEND_FLOAT, 5, 10, 15, 'i'},
    {LEND_FLOAT8_E3M4, 3, 4, 3, 'i'},
    {LEND_FLOAT8_E4M3, 4, 3, 7, 'i'},
    {LEND_FLOAT8_E4M3B11FNUZ, 4, 3, 11, 'z'},
    {LEND_FLOAT8_E4M3FN, 4, 3, 7, 'n'},
    {LEND_FLOAT8_E4M3FNUZ, 4, 3, 8, 'z'},
    {LEND_FLOAT8_E5M2, 5, 2, 15, 'i'},
    {LEND_FLOAT8_E5M2FNUZ, 5, 2, 16, 'z'},
    {LEND_FLOAT6_E2M3FN, 2, 3, 1, 'f'},
    {LEND_FLOAT6_E3M2FN, 3, 2, 3, 'f'},
    {LEND_FLOAT4_E2M1FN, 2, 1, 1, 'f'},
};

struct decoder {
    DLDataType dtype;
    unsigned stored_bits; /* of one lane in memory */
    double *table;        /* of 1 << min(stored_bits, 16) values, or NULL */
};

static double decode_float(const struct float_format *f, unsigned raw) {
    unsigned mantissa_mask = (1u << f->mantissa_bits) - 1, exponent_mask = (1u << f->exponent_bits) - 1;
    unsigned mantissa = raw & mantissa_mask, exponent = raw >> f->mantissa_bits & exponent_mask;
    unsigned sign_bit = 1u << (f->mantissa_bits + f->exponent_bits);
    double sign = raw & sign_bit ? -1 : 1;
    if (f->kind == 'z' && raw == sign_bit) return NAN;
    if (exponent == exponent_mask) {
        if (f->kind == 'i') return mantissa ? NAN : sign * INFINITY;
        if (f->kind == 'n' && mantissa == mantissa_mask) return NAN;
    }
    if (exponent) return sign * ldexp(mantissa_mask + 1 + mantissa, (int)exponent - f->bias - f->mantissa_bits);
    return sign * ldexp(mantissa, 1 - f->bias - f->mantissa_bits);
}

/* The value of a lane of at most 16 bits; false for a dtype that is not known here. */
static bool decode_small(DLDataType dtype, unsigned raw, double *ret) {
    raw &= (1u << dtype.bits) - 1; /* a padded element's upper bits mean nothing */
    switch (dtype.code) {
    case LEND_BOOL: *ret = raw != 0; return true;
    case LEND_UINT: *ret = raw; return true;
    case LEND_INT: *ret = raw >> (dtype.bits - 1) ? (double)raw - (double)(1u << dtype.bits) : (double)raw; return true;
    case LEND_FLOAT8_E8M0FNU: *ret = raw == 255 ? NAN : ldexp(1, (int)raw - 127); return true;
    default: break;
    }
    for (size_t i = 0; i < sizeof float_formats / sizeof float_formats[0]; i++) {
        if (float_formats[i].code != dtype.code) continue;
        *ret = decode_float(&float_formats[i], raw);
        return true;
    }
    return false;
}

static double half_value(const uint8_t *at) {
    uint16_t raw;
    memcpy(&raw, at, sizeof raw);
    return decode_float(&float_formats[1], raw);
}

/* Lane number `i` of a type without a table: 32, 64 or 128 bits, or complex of halves. */
static double decode_large(const struct decoder *d, const uint8_t *data, uint64_t i) {
    const uint8_t *at = data + i * (d->stored_bits / 8);
    union {
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
        float f32[2];
        double f64[2];
    } u;
    memcpy(&u, at, d->stored_bits / 8);
    switch (d->dtype.code << 8 | d->dtype.bits) {
    case LEND_INT << 8 | 32: return u.i32;
    case LEND_UINT << 8 | 32: return u.u32;
    case LEND_INT << 8 | 64: return (double)u.i64;
    case LEND_UINT << 8 | 64: return (double)u.u64;
    case LEND_FLOAT << 8 | 32: return u.f32[0];
    case LEND_FLOAT << 8 | 64: return u.f64[0];
    case LEND_COMPLEX << 8 | 32: return hypot(half_value(at), half_value(at + 2));
    case LEND_COMPLEX << 8 | 64: return hypot((double)u.f32[0], (double)u.f32[1]);
    default: return hypot(u.f64[0], u.f64[1]);
    }
}

/* Bits of a packed lane; they span at most two bytes. */
static unsigned packed_bits(const uint8_t *data, uint64_t bit, unsigned bits) {
    unsigned shift = bit % 8, raw = data[bit / 8];
    if (shift + bits > 8) raw |= (unsigned)data[bit / 8 + 1] << 8;
    return raw >> shift & ((1u << bits) - 1);
}

static void decode_chunk(const struct decoder *d, const uint8_t *data, uint64_t first, size_t n, double *values) {
    for (size_t i = 0; i < n; i++) {
        uint16_t raw;
        if (!d->table) {
            values[i] = decode_large(d, data, first + i);
        } else if (d->stored_bits == 16) {
            memcpy(&raw, data + (first + i) * 2, sizeof raw);
            values[i] = d->table[raw];
        } else if (d->stored_bits == 8) {
            values[i] = d->table[data[first + i]];
        } else {
            values[i] = d->table[packed_bits(data, (first + i) * d->stored_bits, d->stored_bits)];
        }
    }
}

static int decoder_init(const struct lend_tensor_info *info, struct decoder *ret, struct lend_error *error) {
    *ret = (struct decoder){.dtype = info->dtype, .stored_bits = info->is_padded ? 8 : info->dtype.bits};
    if (ret->stored_bits > 16) return 0;
    unsigned n = 1u << ret->stored_bits;
    ret->table = malloc(n * sizeof *ret->table);
    if (!ret->table) {
        snprintf(error->text, sizeof error->text, "no memory for a table of %u values", n);
        return error->code = -ENOMEM;
    }
    for (unsigned raw = 0; raw < n; raw++) {
        if (decode_small(info->dtype, raw, &ret->table[raw])) continue;
        free(ret->table);
        snprintf(error->text, sizeof error->text, "the dtype with code %d is not known here", info->dtype.code);
        return error->code = -EOPNOTSUPP;
    }
    return 0;
}

struct sum {
    double total, correction;
};

static void sum_add(struct sum *sum, double value) {
    double next = sum->total + value;
    sum->correction += fabs(sum->total) >= fabs(value) ? sum->total - next + value : value - next + sum->total;
    sum->total = next;
}

/* Takes one chunk into the figures; returns how many of it were numbers. */
static uint64_t take_chunk(const double *values, size_t n, struct stats *s, struct sum *sum) {
    double part = 0;
    uint64_t n_numbers = 0;
    for (size_t i = 0; i < n; i++) {
        double v = values[i];
        if (isnan(v)) continue;
        if (!s->has_values || v < s->min) s->min = v;
        if (!s->has_values || v > s->max) s->max = v;
        s->has_values = true;
        part += v;
        n_numbers++;
    }
    sum_add(sum, part);
    return n_numbers;
}

/* Minimum and maximum of 64-bit integers, which doubles would round. */
static void exact_int64(const uint8_t *data, uint64_t n, bool is_unsigned, struct stats *s) {
    /* Unsigned values compare as signed ones with the upper bit turned. */
    uint64_t turn = is_unsigned ? UINT64_C(1) << 63 : 0;
    int64_t min = INT64_MAX, max = INT64_MIN;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t raw;
        memcpy(&raw, data + i * 8, sizeof raw);
        int64_t v = (int64_t)(raw ^ turn);
        if (v < min) min = v;
        if (v > max) max = v;
    }
    s->int_min = (int64_t)((uint64_t)min ^ turn);
    s->int_max = (int64_t)((uint64_t)max ^ turn);
}

static void hash(const void *data, uint64_t bytes, char hex[65]) {
    struct sha256_ctx ctx;
    uint8_t digest[SHA256_DIGEST_SIZE];
    sha256_init(&ctx);
    if (bytes) sha256_update(&ctx, bytes, data);
    sha256_digest(&ctx, sizeof digest, digest);
    for (size_t i = 0; i < sizeof digest; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

static void compute(const struct decoder *d, const struct lend_tensor_info *info, struct stats *s) {
    const uint8_t *data = info->data;
    uint64_t n = (uint64_t)info->numel * info->dtype.lanes, n_numbers = 0;
    struct sum sum = {0, 0};
    double values[CHUNK] = {0};
    for (uint64_t first = 0; first < n; first += CHUNK) {
        size_t part = n - first < CHUNK ? (size_t)(n - first) : CHUNK;
        decode_chunk(d, data, first, part, values);
        n_numbers += take_chunk(values, part, s, &sum);
    }
    s->n_nan = n - n_numbers;
    if (n_numbers) {
        /* An infinite sum makes the correction a NaN. */
        double total = isfinite(sum.total) ? sum.total + sum.correction : sum.total;
        s->mean = total / (double)n_numbers;
    }
    s->is_magnitude = info->dtype.code == LEND_COMPLEX;
    s->is_integer = info->dtype.code == LEND_INT || info->dtype.code == LEND_UINT || info->dtype.code == LEND_BOOL;
    if (s->is_integer && info->dtype.bits == 64) {
        exact_int64(data, n, info->dtype.code == LEND_UINT, s);
    } else if (s->is_integer && s->has_values) {
        s->int_min = (int64_t)s->min;
        s->int_max = (int64_t)s->max;
    }
    hash(data, info->nbytes, s->sha256);
}

int stats_compute(struct lend_tensor *tensor, struct stats *ret, struct lend_error *error) {
    struct lend_tensor_info info = {.size = sizeof info};
    struct lend_tensor *copy = NULL;
    struct decoder decoder;
    int r = lend_tensor_info(tensor, &info);
    if (r < 0) {
        snprintf(error->text, sizeof error->text, "%s", lend_strerror(r));
        return error->code = r;
    }
    /* Sub-byte elements may begin and end inside bytes that they share with neighbours; with some attributes the memory
     * does not say what the values are. */
    bool is_plain = info.is_contiguous && !info.is_padded && info.dtype.bits >= 8;
    if (!is_plain || info.is_zero || info.attrs & (LEND_ATTR_CONJ | LEND_ATTR_NEG)) {
        r = lend_tensor_copy(tensor, NULL, &copy, error);
        if (r == 0) r = lend_tensor_info(copy, &info);
        if (r < 0) goto out;
    }
    r = decoder_init(&info, &decoder, error);
    if (r < 0) goto out;
    *ret = (struct stats){.has_values = false};
    compute(&decoder, &info, ret);
    free(decoder.table);
out:
    lend_tensor_unref(copy);
    return r;
}
