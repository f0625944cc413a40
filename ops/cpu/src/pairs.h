// What a step over k multiplies but where all is float: pairs of neighbouring k, of rows and of columns.
#pragma once

#include <cstdint>

#include "simd.h"

namespace squadron {

constexpr int64_t VECTOR_BYTES = LANES * 4;

// Of TILE_COLUMNS columns.
template <class T>
struct PairColumns {
    Vec first[2], second[2];
};

template <class T>
struct RowPair {
    Vec first, second;
    explicit RowPair(const T* p) : first(broadcast(p[0])), second(broadcast(p[1])) {}
};

// Of pairs of bfloat16 in words: the first of a pair is the low half.
template <int which>
inline Vec of_pairs(Words pairs) { return which == 0 ? (Vec)(pairs << 16) : (Vec)(pairs & 0xffff0000u); }

template <class T>
inline Vec multiply_add(Vec sum, const RowPair<T>& row, const PairColumns<T>& columns, int half) {
    return fmadd(row.second, columns.second[half], fmadd(row.first, columns.first[half], sum));
}

template <class T>
inline void store_unpacked(const PairColumns<T>& columns, char* target) {
    for (int half = 0; half < 2; half++) {
        store_bits(target + half * 2 * VECTOR_BYTES, columns.first[half]);
        store_bits(target + (half * 2 + 1) * VECTOR_BYTES, columns.second[half]);
    }
}

// Whether a pair of a row times one of a column is one instruction.
#if defined(__AVX512BF16__)
template <class T>
constexpr bool IS_ONE_PRODUCT = sizeof(T) == sizeof(bfloat16);

template <>
struct PairColumns<bfloat16> {
    __m512bh halves[2];
};

template <>
struct RowPair<bfloat16> {
    __m512bh pair;
    explicit RowPair(const bfloat16* p) : pair((__m512bh)_mm512_set1_epi32(load_bits<int>(p))) {}
};

inline Vec multiply_add(Vec sum, const RowPair<bfloat16>& row, const PairColumns<bfloat16>& columns, int half) {
    return _mm512_dpbf16_ps(sum, row.pair, columns.halves[half]);
}

inline void store_unpacked(const PairColumns<bfloat16>& columns, char* target) {
    for (int half = 0; half < 2; half++) store_bits(target + half * VECTOR_BYTES, columns.halves[half]);
}

#else
template <class T>
constexpr bool IS_ONE_PRODUCT = false;

// One load, and then what vectors do: a number by itself would go through the other registers.
template <>
struct RowPair<bfloat16> {
    Vec first, second;
    explicit RowPair(const bfloat16* p) {
        const Words pair = broadcast_word(load_bits<uint32_t>(p));
        first = of_pairs<0>(pair), second = of_pairs<1>(pair);
    }
};

#endif

// `rows` rows, three to a pointer as in tile.cpp.
template <class T, int rows>
struct Rows {
    static constexpr int POINTERS = (rows + 2) / 3;
    const T* pointers[POINTERS];
    int64_t lda;

    Rows(const T* a, int64_t lda) : lda(lda) {
#pragma GCC unroll 16
        for (int i = 0; i < POINTERS; i++) pointers[i] = a + 3 * i * lda;
    }
    RowPair<T> pair(int row, int64_t k) const { return RowPair<T>(pointers[row / 3] + row % 3 * lda + k); }
    void advance(int64_t count) {
#pragma GCC unroll 16
        for (int i = 0; i < POINTERS; i++) {
            pointers[i] += count;
            asm("" : "+r"(pointers[i]));
        }
    }
};

}  // namespace squadron
