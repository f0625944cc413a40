// Inputs as integers of three digits, for products with codes of bytes: where bfloat16 has no products but bytes have.
//
// A run of a row (inputs that share a scale of the weight) becomes integers of 23 bits with one power of two for all of them. That
// is what each number is, to the bit, if it is no less than 2^-14 of the run's largest; a smaller one is rounded to 2^-23 of
// the largest, as a sum in float32 would round it. An integer is three digits of base 256 between -128 and 127, and a digit
// times a code is a product of bytes, four of which an instruction adds to a sum of 32 bits: so sums are exact, in any order.
#pragma once

#include <cstdint>

#include "dtype.h"
#include "quantized.h"

namespace squadron {

#if defined(__AVX512VNNI__) && !defined(__AVX512BF16__)
constexpr bool HAS_DIGITS = true;
#else
constexpr bool HAS_DIGITS = false;
#endif

// Whether inputs of this dtype are digits where such codes are multiplied.
constexpr bool in_digits(int32_t codes, int32_t dtype) {
    return HAS_DIGITS && dtype == BFLOAT16 &&
           (codes == INT8 || codes == INT4 || codes == ZERO4 || codes == SYM8 || codes == ZERO8);
}

constexpr bool is_four_bits(Codes codes) { return codes == INT4 || codes == ZERO4; }

// Codes are bytes without a sign: those of INT8 and INT4 are stored with this zero point.
constexpr int zero_point(Codes codes) { return codes == INT4 ? 8 : 128; }

// Of codes of four bits, those of the right half of the columns are multiplied as sixteen times what they are: so is their zero
// point, and their sums are multiplied by a sixteenth of their scales.
constexpr int times(Codes codes, int column) { return is_four_bits(codes) && column >= LANES ? 16 : 1; }

// Where a run's codes are: its byte, and of those of four bits the first of them.
struct Place {
    int64_t byte;
    int shift;
};

// For each QUAD k a vector of LANES words, a column of either half each, which has the lower four bits of its bytes or the
// higher ones; or, of eight bits, a vector for either half.
inline Place digit_place_of(Codes codes, int64_t k, int column) {
    const int half = column / LANES, word = column % LANES * 4 + (int)(k % QUAD);
    if (is_four_bits(codes)) return {k / QUAD * VECTOR_BYTES + word, half * 4};
    return {(k / QUAD * 2 + half) * VECTOR_BYTES + word, 0};
}

constexpr int DIGITS = 3;
constexpr int64_t QUAD_DIGITS_BYTES = 16;  // of four k: their lowest digits, the next ones, the highest, and four bytes of nothing
constexpr int DIGIT_ROWS = 4;              // as many as leave the sums of their digits in registers

// Of a run of a row, before its digits. What the digits stand for times the scale is the numbers; totals: the sums of the former,
// from the lowest on.
struct DigitHead {
    float scale, totals[DIGITS];
};

constexpr int64_t digits_bytes(int64_t length, int64_t runs) {
    return runs * (int64_t)sizeof(DigitHead) + length / QUAD * QUAD_DIGITS_BYTES;
}

// digits [digits_bytes] <- a leaf's numbers x, in runs of these lengths (multiples of QUAD). Numbers that are not all finite have
// NaN for a scale.
void encode_digits(const bfloat16* x, const int32_t* lengths, int64_t count, char* digits);

// c [rows, TILE_COLUMNS] = digits [rows] (row stride in bytes) x a leaf's runs, but for the codes' places as quantized.h and
// published.h have them; 1 <= rows <= DIGIT_ROWS.
// Meanwhile asks the memory for what lies ahead, for each four k; of its own runs, if that is null.
void multiply_digits(Codes codes, int64_t rows, const char* digits, int64_t stride, const char* data, const int32_t* lengths,
                     int64_t count, float* c, Ahead ahead);

}  // namespace squadron
