// Weights as small integers with a scale for each group of k: how they lie in memory, and how they become numbers again.
//
// A leaf is cut into groups of GROUP k, the last one perhaps shorter. A group is its columns' scales and then their codes:
// [TILE_COLUMNS] bfloat16, and a vector of codes for each two k (INT8) or four k (INT4), see load_columns. A step multiplies a
// row's pair of neighbouring k; codes are exact in bfloat16 as in float.
#pragma once

#include <cstdint>

#include "pairs.h"
#include "tile.h"

namespace squadron {

struct PackedWeight;

// UNPACKED: in place of each step's codes what load_columns has made of them, for several tiles to read. COMPACT is compact.h's;
// from ZERO4 on they are published.h's: four bits with zero points, eight bits without and with, float8. PRODUCT8 is int8_linear.cpp's.
enum Codes : int32_t { PLAIN = 0, INT8 = 1, INT4 = 2, UNPACKED = 3, COMPACT = 4, ZERO4 = 5, SYM8 = 6, ZERO8 = 7, FLOAT8 = 8, PRODUCT8 = 9 };

constexpr int64_t GROUP = 64;  // k that share a scale; a leaf's length is a multiple of QUAD
constexpr int64_t INT8_SPAN = 16 * GROUP;  // k of INT8 whose groups have the same one
constexpr int64_t QUAD = 4;
constexpr int64_t SCALE_BYTES = TILE_COLUMNS * sizeof(bfloat16);  // of a group

constexpr int64_t group_bytes(Codes codes, int64_t length) {
    return SCALE_BYTES + length / (codes == INT8 ? 2 : QUAD) * VECTOR_BYTES;
}

constexpr int64_t leaf_bytes(Codes codes, int64_t length) {
    const int64_t rest = length % GROUP;
    return length / GROUP * group_bytes(codes, GROUP) + (rest > 0 ? group_bytes(codes, rest) : 0);
}

// --- a step's codes as what a row's pair is multiplied with --------------------------------------------------------------

typedef int16_t Shorts __attribute__((vector_size(LANES * 2)));

inline Vec to_floats(Shorts x) { return __builtin_convertvector(__builtin_convertvector(x, Ints), Vec); }
inline Vec to_floats(Ints x) { return __builtin_convertvector(x, Vec); }

// Of a step's bytes of INT8 (the first of each pair, or the second), those of one half of the columns: each in all four bytes of
// its word, so that shifting the word right by 24 leaves it, with its sign or without.
#if defined(__AVX2__)
typedef uint8_t Bytes __attribute__((vector_size(LANES * 4)));

template <int half, int which, int... byte>
inline Words spread(Bytes pairs, std::integer_sequence<int, byte...>) {
#if defined(__clang__)
    return (Words)__builtin_shufflevector(pairs, pairs, (byte / 16 * 16 + 8 * half + byte % 16 / 4 * 2 + which)...);
#else
    return (Words)__builtin_shuffle(pairs, Bytes{(byte / 16 * 16 + 8 * half + byte % 16 / 4 * 2 + which)...});
#endif
}

template <int half, int which>
inline Words spread_bytes(const char* step) {
    return spread<half, which>(load_bits<Bytes>(step), std::make_integer_sequence<int, LANES * 4>());
}
#else
template <int half, int which>
inline Words spread_bytes(const char* step) {
    Words words;
    for (int lane = 0; lane < LANES; lane++) words[lane] = (uint8_t)step[lane / 4 * 16 + 8 * half + lane % 4 * 2 + which] * 0x1010101u;
    return words;
}
#endif

// Two's complement. INT8: for each step [LANES / 4][halves][4 columns][2] bytes. INT4: for each two steps a vector of LANES words, a column of either half each; a
// word's low half has the first k of the pairs, its high half the second; four bits each, lowest first: (step 0, left half of
// the columns), (step 0, right), (step 1, left), (step 1, right).
template <Codes codes, class T>
inline void load_columns(const char* group_codes, int64_t step, PairColumns<T>& columns) {
    if (codes == INT8) {
        const auto numbers = [](Words bytes) { return to_floats((Ints)bytes >> 24); };
        columns.first[0] = numbers(spread_bytes<0, 0>(group_codes + step * VECTOR_BYTES));
        columns.first[1] = numbers(spread_bytes<1, 0>(group_codes + step * VECTOR_BYTES));
        columns.second[0] = numbers(spread_bytes<0, 1>(group_codes + step * VECTOR_BYTES));
        columns.second[1] = numbers(spread_bytes<1, 1>(group_codes + step * VECTOR_BYTES));
        return;
    }
    for (int half = 0; half < 2; half++) {
        if (codes == UNPACKED) {
            const char* vectors = group_codes + (step * 4 + half * 2) * VECTOR_BYTES;
            columns.first[half] = load_bits<Vec>(vectors);
            columns.second[half] = load_bits<Vec>(vectors + VECTOR_BYTES);
        } else {
            const Words words = load_bits<Words>(group_codes + step / 2 * VECTOR_BYTES);
            const int shift = (int)(step % 2) * 8 + half * 4;
            columns.first[half] = to_floats((Ints)(words << (28 - shift)) >> 28);
            columns.second[half] = to_floats((Ints)(words << (12 - shift)) >> 28);
        }
    }
}

#if defined(__AVX512BF16__)

// 0 to 7 and -8 to -1 as bfloat16, twice: a table that needs no mask for the fifth bit of its index.
alignas(64) constexpr uint16_t INT4_VALUES[32] = {
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
    0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80};

// 0 to 127 as bfloat16, the low bytes and the high ones.
struct Magnitudes {
    alignas(64) uint8_t low[128] = {}, high[128] = {};
    constexpr Magnitudes() {
        for (int i = 1, exponent = 0; i < 128; i++) {
            if (i >> (exponent + 1)) exponent++;
            const int bits = ((127 + exponent) << 7) + (i << (7 - exponent)) - 128;
            low[i] = (uint8_t)bits;
            high[i] = (uint8_t)(bits >> 8);
        }
    }
    static __m512i find(const uint8_t (&table)[128], __m512i index) {
        return _mm512_permutex2var_epi8(load_bits<__m512i>(table), index, load_bits<__m512i>(table + 64));
    }
};
constexpr Magnitudes MAGNITUDES;

template <Codes codes>
inline void load_columns(const char* group_codes, int64_t step, PairColumns<bfloat16>& columns) {
    if (codes == UNPACKED) {
        for (int half = 0; half < 2; half++)
            columns.halves[half] = load_bits<__m512bh>(group_codes + (step * 2 + half) * VECTOR_BYTES);
        return;
    }
    if (codes == INT8) {
        const __m512i values = load_bits<__m512i>(group_codes + step * VECTOR_BYTES), index = _mm512_abs_epi8(values);
        const __m512i low = Magnitudes::find(MAGNITUDES.low, index), high = Magnitudes::find(MAGNITUDES.high, index);
        constexpr int A_OR_B_AND_C = 0xf8;
        const __m512i with_sign = _mm512_ternarylogic_epi32(high, values, _mm512_set1_epi8((char)0x80), A_OR_B_AND_C);
        columns.halves[0] = (__m512bh)_mm512_unpacklo_epi8(low, with_sign);
        columns.halves[1] = (__m512bh)_mm512_unpackhi_epi8(low, with_sign);
        return;
    }
    const __m512i words = load_bits<__m512i>(group_codes + step / 2 * VECTOR_BYTES), table = load_bits<__m512i>(INT4_VALUES);
    for (int half = 0; half < 2; half++)
        columns.halves[half] = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, (int)(step % 2) * 8 + half * 4), table);
}

#endif

// --- unpacked groups: the scales as they are, then the steps' columns ----------------------------------------------------

template <Codes codes, class T>
constexpr int64_t group_bytes(int64_t length) {
    return codes == UNPACKED ? SCALE_BYTES + length / 2 * (int64_t)sizeof(PairColumns<T>) : group_bytes(codes, length);
}

template <Codes codes, class T>
constexpr int64_t leaf_bytes(int64_t length) {
    const int64_t rest = length % GROUP;
    return length / GROUP * group_bytes<codes, T>(GROUP) + (rest > 0 ? group_bytes<codes, T>(rest) : 0);
}

// --- quantize.cpp and quantized.cpp -----------------------------------------------------------------------------------------

// One panel, from the rows that stand in its columns, and back: a row of a weight that is not gated.
template <class T>
void quantize_panel(const PackedWeight& weight, const T* source, int64_t panel);
void dequantize_row(const PackedWeight& weight, int64_t row, float* target);

// As many as leave registers to the codes that become numbers.
#if defined(__AVX512BF16__)
template <class T>
constexpr int QUANTIZED_ROWS = TILE_ROWS<T>;
#else
template <class T>
constexpr int QUANTIZED_ROWS = TILE_ROWS<bfloat16> - 1;
#endif

// Of a tile that keeps what it unpacks, at least: several share their rows evenly.
template <class T>
constexpr int FEWEST_KEPT = (QUANTIZED_ROWS<T> + 1) / 2;

// c [rows, TILE_COLUMNS] = a [rows, length] (row stride lda) x the leaf; 1 <= rows <= QUANTIZED_ROWS. A group is what
// multiply_tile makes of it (by tile registers, all groups of a span); from the first group on, each one's sum times its scale is
// added to the sum. If kept is not null (rows >= FEWEST_KEPT): kept [leaf_bytes<UNPACKED, T>(length)] <- the leaf with its codes
// UNPACKED, for other tiles to read, as the leaf that is_unpacked. Codes are fetched ahead of themselves; `ahead` is for what is
// unpacked or kept.
template <class T>
void multiply_leaf(Codes codes, bool is_unpacked, int64_t rows, const T* a, int64_t lda, const char* leaf, int64_t length, float* c,
                   char* kept, Ahead ahead);

}  // namespace squadron
