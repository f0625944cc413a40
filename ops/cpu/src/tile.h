// The product at the bottom of the linears and of attention: a few rows times one panel of TILE_COLUMNS columns.
//
// An element is one chain of multiply-adds over k, whatever the number of rows beside it: its bits depend on its own row
// and column alone.
#pragma once

#include <cstdint>

#include "simd.h"

namespace squadron {

constexpr int TILE_COLUMNS = 2 * LANES;

// What one step over k takes of a row or column: one float, or a pair of bfloat16, 4 bytes either way.
template <class T>
constexpr int STEP = 4 / sizeof(T);

// As many rows as leave the accumulators in registers, and no more than `transpose` makes of them at once.
constexpr int fitting_rows(int spare_registers) {
    const int rows = (VECTOR_REGISTERS - spare_registers) / 2;
    return rows < LANES ? rows : LANES;
}
#if defined(__AVX512BF16__)
template <class T>
constexpr int TILE_ROWS = fitting_rows(4);
#else
template <class T>
constexpr int TILE_ROWS = fitting_rows(STEP<T> == 1 ? 4 : 8);
#endif

// c [rows, TILE_COLUMNS] (row stride ldc) = a [rows, steps * STEP] (row stride lda) x panel, or += if accumulate.
// panel [steps, TILE_COLUMNS, STEP], contiguous. 1 <= rows <= TILE_ROWS. Brings two cache lines a step from `ahead` on
// into the cache, unless it is null.
template <class T>
void multiply_tile(int64_t rows, const T* a, int64_t lda, const T* panel, int64_t steps, float* c, int64_t ldc,
                   bool accumulate, const char* ahead = nullptr);

// The same, of a as `pack_rows` lays it out: to the same bits, and faster where that is done once for many panels.
template <class T>
void multiply_packed_tile(int64_t rows, const T* packed, const T* panel, int64_t steps, float* c, int64_t ldc,
                          const char* ahead = nullptr);

// a [rows, steps * STEP] (row stride lda) -> packed [steps, rows, STEP]; writes up to LANES words beyond it.
template <class T>
void pack_rows(int64_t rows, const T* a, int64_t lda, int64_t steps, T* packed);

}  // namespace squadron
