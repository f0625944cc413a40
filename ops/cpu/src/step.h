// A step over k of the products in tile.cpp and parts.cpp: sums [rows][halves] += a row's number, or pair of them, times those of
// TILE_COLUMNS columns, whose halves begin at `first` and `second`. Rows are three to a pointer (see tile.cpp).
#pragma once

#include <cstdint>

#include "pairs.h"
#include "simd.h"

namespace squadron {

// `which`: of the numbers that a row has for the step.
template <int rows>
inline __attribute__((always_inline)) void add_numbers(Vec (&sums)[rows][2], const float* const* pointers, int64_t lda, int which,
                                                       const Vec (&columns)[2]) {
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) {
        const Vec row = broadcast(pointers[m / 3][m % 3 * lda + which]);
        sums[m][0] = fmadd(row, columns[0], sums[m][0]);
        sums[m][1] = fmadd(row, columns[1], sums[m][1]);
    }
}

template <int rows>
inline __attribute__((always_inline)) void add_step(Vec (&sums)[rows][2], const float* const* pointers, int64_t lda,
                                                    const float* first, const float* second) {
    add_numbers<rows>(sums, pointers, lda, 0, {load(first), load(second)});
}

#if defined(__AVX512BF16__)

template <int rows>
inline __attribute__((always_inline)) void add_step(Vec (&sums)[rows][2], const bfloat16* const* pointers, int64_t lda,
                                                    const bfloat16* first, const bfloat16* second) {
    const PairColumns<bfloat16> columns{{load_bits<__m512bh>(first), load_bits<__m512bh>(second)}};
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) {
        const RowPair<bfloat16> row(pointers[m / 3] + m % 3 * lda);
        sums[m][0] = multiply_add(sums[m][0], row, columns, 0);
        sums[m][1] = multiply_add(sums[m][1], row, columns, 1);
    }
}

#endif

}  // namespace squadron
