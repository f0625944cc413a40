// Low-rank adapters of a linear: for rows that have one, W x becomes W x + B (scale * A x), leaf by leaf.
//
// Of a leaf of x, scale * A x is taken in float32 and cast once; its product with B goes on where the leaf's own sum ends, as a
// chain of multiply-adds. So an element depends on its own row, column and leaf alone, as without an adapter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "linear.h"
#include "pairs.h"

namespace squadron {

// LANES neighbouring outputs of a panel, and which of the inner columns they read: a merged linear has an A for each of its parts.
struct AdapterColumns {
    int64_t offset;  // in `up`, elements
    int64_t first;   // inner column
    int64_t steps;   // of STEP inner columns; 0: the adapter leaves these outputs as they are
};

struct Adapter {
    PackedWeight down;              // A, packed plain: out_features inner columns, in as many leaves as the linear has
    const float* scales;            // [down.out_features]
    const void* up;                 // B: of each AdapterColumns [steps][LANES][STEP]
    const AdapterColumns* columns;  // [num_columns], two for each panel of the linear
    int64_t num_columns;
};

// Rows first to end have the adapter in `slot`. Runs ascend and do not overlap.
struct AdapterRun {
    int32_t first, end, slot;
};

// A step's rows, and their adapters of one linear.
struct AdaptedRows {
    const Adapter* const* slots;  // null: of this linear the adapter has none
    const AdapterRun* runs;
    int64_t num_runs;
    void* inner;    // [rows][leaves][width] dtype: scale * A x
    int64_t width;  // inner columns of the largest adapter

    const AdapterRun* first_run(int64_t row) const {
        return std::partition_point(runs, runs + num_runs, [=](const AdapterRun& run) { return run.end <= row; });
    }
};

// One step of STEP inner columns into LANES outputs.
inline Vec multiply_add_step(Vec sum, const float* row, const float* up) { return fmadd(broadcast(*row), load(up), sum); }

inline Vec multiply_add_step(Vec sum, const bfloat16* row, const bfloat16* up) {
    PairColumns<bfloat16> columns;
#if defined(__AVX512BF16__)
    columns.halves[0] = load_bits<__m512bh>(up);
#else
    const Words pairs = load_bits<Words>(up);  // the first of a pair is the low half of the word
    columns.first[0] = (Vec)(pairs << 16);
    columns.second[0] = (Vec)(pairs & 0xffff0000u);
#endif
    return multiply_add(sum, RowPair<bfloat16>(row), columns, 0);
}

template <class T, int rows>
void multiply_up(const T* inner, int64_t stride, const T* up, int64_t steps, float* sums) {
    Vec values[rows];
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++) values[row] = load(sums + row * TILE_COLUMNS);
    for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 8
        for (int row = 0; row < rows; row++)
            values[row] = multiply_add_step(values[row], inner + row * stride + step * STEP<T>, up + step * LANES * STEP<T>);
#pragma GCC unroll 8
    for (int row = 0; row < rows; row++) store(sums + row * TILE_COLUMNS, values[row]);
}

// sums [count, TILE_COLUMNS], from its first of LANES columns on, += inner [count] (so far apart) x up.
template <class T>
void multiply_up(int64_t count, const T* inner, int64_t stride, const T* up, int64_t steps, float* sums) {
    constexpr int MOST = 4;
    for (; count >= MOST; count -= MOST, inner += MOST * stride, sums += MOST * TILE_COLUMNS)
        multiply_up<T, MOST>(inner, stride, up, steps, sums);
    for (; count > 0; count--, inner += stride, sums += TILE_COLUMNS) multiply_up<T, 1>(inner, stride, up, steps, sums);
}

// A leaf's sums of a tile's rows [rows, TILE_COLUMNS] += what their adapters give.
template <class T>
void add_adapters(const AdaptedRows& adapted, int64_t leaves, int64_t leaf, int64_t panel, int64_t begin, int64_t end,
                  float* sums) {
    const int64_t stride = leaves * adapted.width;
    for (const AdapterRun* run = adapted.first_run(begin); run < adapted.runs + adapted.num_runs && run->first < end; run++) {
        const Adapter* adapter = adapted.slots[run->slot];
        if (adapter == nullptr) continue;
        const int64_t first = std::max<int64_t>(begin, run->first), count = std::min<int64_t>(end, run->end) - first;
        for (int half = 0; half < 2; half++) {
            if (panel * 2 + half >= adapter->num_columns) break;
            const AdapterColumns& columns = adapter->columns[panel * 2 + half];
            const T* inner = (const T*)adapted.inner + first * stride + leaf * adapted.width + columns.first;
            multiply_up(count, inner, stride, (const T*)adapter->up + columns.offset, columns.steps,
                        sums + (first - begin) * TILE_COLUMNS + half * LANES);
        }
    }
}

}  // namespace squadron
