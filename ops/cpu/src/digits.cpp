// encode_digits and multiply_digits.
#include "digits.h"

#include <algorithm>
#include <limits>

#include "api.h"
#include "linear.h"
#include "published.h"
#include "threads.h"

namespace squadron {

#if defined(__AVX512VNNI__) && !defined(__AVX512BF16__)

namespace {

// Bytes from what is multiplied to what is fetched into the first-level cache, and into the second-level one: a row alone reads so
// at nine tenths of the memory's rate, and at eight by either alone.
constexpr int64_t NEAR = 1024, FAR = 8192;
constexpr int INTEGER_BITS = 22;    // and a sign
constexpr int LEAST_EXPONENT = 32;  // biased: of scales that are normal numbers

// The largest magnitude's bits.
int largest_bits(const bfloat16* x, int64_t length) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t i = 0; i < length; i += 2 * LANES) {
        const __mmask32 mask = length - i < 2 * LANES ? (1u << (length - i)) - 1 : ~0u;
        largest = _mm512_max_epu16(largest, _mm512_and_si512(_mm512_maskz_loadu_epi16(mask, x + i), _mm512_set1_epi16(0x7fff)));
    }
    return _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(largest, _mm512_set1_epi32(0xffff)), _mm512_srli_epi32(largest, 16)));
}

float power_of_two(int exponent) {
    const uint32_t word = (uint32_t)(exponent + 127) << 23;
    return load_bits<float>(&word);
}

// A run's head and digits.
void encode_run(const bfloat16* x, int64_t length, char* digits) {
    constexpr int INFINITE = 0x7f80;
    const int bits = largest_bits(x, length), exponent = std::max(bits >> 7, LEAST_EXPONENT) - 127 + 1 - INTEGER_BITS;
    const bool is_finite = bits < INFINITE;
    const Vec inverse = broadcast(power_of_two(-exponent));
    const Words middle = broadcast_word(0x808080);  // makes digits begin at 0
    const __m512i by_digit = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i totals = _mm512_setzero_si512();
    char* target = digits + sizeof(DigitHead);
    for (int64_t i = 0; i < length; i += LANES, target += LANES / QUAD * QUAD_DIGITS_BYTES) {
        const int64_t rest = std::min<int64_t>(length - i, LANES);
        const Ints integers = is_finite ? (Ints)_mm512_cvtps_epi32(load(x + i, rest) * inverse) : Ints{};
        const __m512i bytes = _mm512_shuffle_epi8((__m512i)(((Words)integers + middle) ^ middle), by_digit);
        totals = _mm512_dpbusd_epi32(totals, _mm512_set1_epi8(1), bytes);
        _mm512_mask_storeu_epi32(target, (__mmask16)((1u << rest) - 1), bytes);
    }
    alignas(64) int32_t sums[LANES];
    store_bits(sums, totals);
    DigitHead head{is_finite ? power_of_two(exponent) : std::numeric_limits<float>::quiet_NaN(), {}};
    for (int i = 0; i < DIGITS; i++) head.totals[i] = (float)(sums[i] + sums[i + 4] + sums[i + 8] + sums[i + 12]);
    std::memcpy(digits, &head, sizeof head);
}

// Of a run, before its codes.
template <Codes codes>
struct RunHead {
    static constexpr bool IS_PUBLISHED = is_published(codes);
    static constexpr int64_t BYTES = IS_PUBLISHED ? HEADER_BYTES : SCALE_BYTES;
    const char* run;

    Vec scales(int half) const {
        if (IS_PUBLISHED) return load((const float*)run + half * LANES);
        return load((const bfloat16*)run + half * LANES) * broadcast(1.0f / (float)times(codes, half * LANES));
    }
    Vec zeros(int half) const {
        if (!IS_PUBLISHED) return broadcast((float)(zero_point(codes) * times(codes, half * LANES)));
        return to_floats(load_bits<Shorts>(run + TILE_COLUMNS * sizeof(float) + half * LANES * sizeof(int16_t)));
    }
};

// Bytes of four k of the columns' halves.
template <Codes codes>
inline __attribute__((always_inline)) void load_quad(const char* data, __m512i (&columns)[2]) {
    columns[0] = load_bits<__m512i>(data);
    if (!is_four_bits(codes)) {
        columns[1] = load_bits<__m512i>(data + VECTOR_BYTES);
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    columns[1] = _mm512_andnot_si512(low, columns[0]);
    columns[0] = _mm512_and_si512(low, columns[0]);
}

// By name, since GCC 12 makes a copy of every sum for the intrinsic function, and keeps both.
inline void add_products(__m512i& sum, __m512i codes, __m512i digits) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(digits));
}

// A digit's products with codes less their zero points: exact, in 24 bits.
inline __attribute__((always_inline)) Vec less_zeros(__m512i products, Vec zero, float total) {
    return fmadd(-zero, broadcast(total), to_floats((Ints)products));
}

template <Codes codes, int rows>
void kernel(const char* digits, int64_t stride, const char* run, const int32_t* lengths, int64_t count, float* c, Ahead ahead) {
    constexpr int64_t QUAD_BYTES = is_four_bits(codes) ? VECTOR_BYTES : 2 * VECTOR_BYTES;
    const bool is_own = ahead.data == nullptr;
    Vec sums[rows][2] = {};
    for (int64_t i = 0; i < count; i++) {
        const RunHead<codes> head{run};
        const char *data = run + head.BYTES, *heads = digits, *end = data + lengths[i] / QUAD * QUAD_BYTES;
        if (is_own) ahead = {data + FAR, QUAD_BYTES};
        digits += sizeof(DigitHead);
        __m512i products[rows][DIGITS][2] = {};
        for (; data < end; data += QUAD_BYTES, digits += QUAD_DIGITS_BYTES, ahead.data += ahead.step_bytes) {
            for (int64_t line = 0; line < QUAD_BYTES; line += VECTOR_BYTES) {
                __builtin_prefetch(data + NEAR + line, 0, 3);
                __builtin_prefetch(ahead.data + line * ahead.step_bytes / QUAD_BYTES, 0, 2);
            }
            __m512i columns[2];
            load_quad<codes>(data, columns);
#pragma GCC unroll 4
            for (int m = 0; m < rows; m++)
#pragma GCC unroll 3
                for (int digit = 0; digit < DIGITS; digit++) {
                    const __m512i row = _mm512_set1_epi32(load_bits<int>(digits + m * stride + digit * QUAD));
                    add_products(products[m][digit][0], columns[0], row);
                    add_products(products[m][digit][1], columns[1], row);
                }
        }
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const Vec scale = head.scales(half), zero = head.zeros(half);
#pragma GCC unroll 4
            for (int m = 0; m < rows; m++) {
                const DigitHead& of_row = *(const DigitHead*)(heads + m * stride);
                const Vec base = broadcast(256.0f);
                const float* totals = of_row.totals;
                Vec sum = less_zeros(products[m][2][half], zero, totals[2]);
                sum = fmadd(sum, base, less_zeros(products[m][1][half], zero, totals[1]));
                sum = fmadd(sum, base, less_zeros(products[m][0][half], zero, totals[0]));
                sums[m][half] = fmadd(sum, scale * broadcast(of_row.scale), sums[m][half]);
            }
        }
        run = end;
    }
#pragma GCC unroll 4
    for (int m = 0; m < rows; m++)
        for (int half = 0; half < 2; half++) store(c + m * TILE_COLUMNS + half * LANES, sums[m][half]);
}

template <Codes codes>
void multiply(int64_t rows, const char* digits, int64_t stride, const char* data, const int32_t* lengths, int64_t count, float* c,
              Ahead ahead) {
    static constexpr decltype(&kernel<codes, 1>) kernels[] = {kernel<codes, 1>, kernel<codes, 2>, kernel<codes, 3>, kernel<codes, 4>};
    static_assert(sizeof kernels / sizeof kernels[0] == DIGIT_ROWS);
    kernels[rows - 1](digits, stride, data, lengths, count, c, ahead);
}

}  // namespace

void encode_digits(const bfloat16* x, const int32_t* lengths, int64_t count, char* digits) {
    for (int64_t i = 0; i < count; i++) {
        encode_run(x, lengths[i], digits);
        x += lengths[i];
        digits += digits_bytes(lengths[i], 1);
    }
}

void multiply_digits(Codes codes, int64_t rows, const char* digits, int64_t stride, const char* data, const int32_t* lengths,
                     int64_t count, float* c, Ahead ahead) {
    const auto multiply_codes = codes == INT8    ? multiply<INT8>
                                : codes == INT4  ? multiply<INT4>
                                : codes == ZERO4 ? multiply<ZERO4>
                                                 : multiply<ZERO8>;
    multiply_codes(rows, digits, stride, data, lengths, count, c, ahead);
}

#else

void encode_digits(const bfloat16*, const int32_t*, int64_t, char*) {}
void multiply_digits(Codes, int64_t, const char*, int64_t, const char*, const int32_t*, int64_t, float*, Ahead) {}

#endif

}  // namespace squadron

using namespace squadron;

SQUADRON_API int64_t squadron_digits_bytes(const PackedWeight* weight) {
    return in_digits(weight->codes, weight->dtype) ? weight->leaves * weight->leaf_digits_bytes() : 0;
}

SQUADRON_API void squadron_encode_digits(const PackedWeight* weight, const void* x, int64_t rows, char* digits, int32_t threads) {
    const int64_t leaves = weight->leaves, bytes = weight->leaf_digits_bytes();
    for_each(rows * leaves, 1, threads, [=](int64_t i) {
        const int32_t first = weight->leaf_runs[i % leaves], end = weight->leaf_runs[i % leaves + 1];
        encode_digits((const bfloat16*)x + i * weight->leaf_length(), weight->runs + first, end - first, digits + i * bytes);
    });
}
