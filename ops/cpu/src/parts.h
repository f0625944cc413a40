// The product at the bottom of attention: multiply_tile of a panel whose parts lie apart, with rows that are read many times.
#pragma once

#include <cstdint>

#include "simd.h"
#include "tile.h"

namespace squadron {

// What rows are, beside columns of T. Where bfloat16 has no products they are floats that bfloat16 has: widened once, and not for
// each panel.
#if defined(__AVX512BF16__)
template <class T>
using RowOf = T;
#else
template <class T>
using RowOf = float;
#endif

// Where a part's columns begin: the first LANES, and the others; and what lies alike, and is read later: the memory is asked for it
// step by step, so that it answers while others are multiplied.
template <class T>
struct Part {
    const T *halves[2], *ahead[2];
};

inline void store_row(float* p, Vec v, float) { store(p, v); }
#if defined(__AVX512BF16__)
inline void store_row(bfloat16* p, Vec v, bfloat16) { store(p, v); }
#else
inline void store_row(float* p, Vec v, bfloat16) { store(p, widen(narrow(v))); }
#endif

// c [rows, TILE_COLUMNS] (row stride ldc) = a [rows, count * steps * STEP] (row stride lda) x the parts, one after the other, or +=
// if accumulate. A step's columns are `stride` elements behind those of the one before. 1 <= rows <= TILE_ROWS. The same chains
// as multiply_tile's.
template <class T>
void multiply_parts(int64_t rows, const RowOf<T>* a, int64_t lda, const Part<T>* parts, int64_t count, int64_t steps,
                    int64_t stride, float* c, int64_t ldc, bool accumulate);

}  // namespace squadron
