// Low-rank adapters of a linear: for rows that have one, W x becomes W x + B (scale * A x), leaf by leaf.
//
// Of a leaf of x, scale * A x is taken in float32 and cast once; its product with B goes on where the leaf's own sum ends, as a
// chain of multiply-adds. So an element depends on its own row, column and leaf alone, as without an adapter.
#pragma once

#include <algorithm>
#include <cstdint>

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
    const void* down;               // A: [halves][leaves][steps][LANES][STEP], missing inner columns zero
    int64_t width;                  // inner columns
    int64_t in_features, leaves;    // the linear's
    const float* scales;            // [width]
    const void* up;                 // B: of each AdapterColumns [steps][LANES][STEP]
    const AdapterColumns* columns;  // [num_columns], two for each panel of the linear
    int64_t num_columns;

    int64_t halves() const { return (width + LANES - 1) / LANES; }
};

// Rows first to end have the adapter in `slot`. Runs ascend and do not overlap.
struct AdapterRun {
    int32_t first, end, slot;
};

// A step's rows, and their adapters of one linear. Read when a kernel begins, also on a tape: slots and runs may have changed since.
struct AdaptedRows {
    const Adapter* const* slots;  // null: of this linear the adapter has none. Null itself: no row has one
    const AdapterRun* runs;       // some at the end may be empty
    int64_t num_runs;
    void* inner;    // [rows][leaves][width] dtype: scale * A x
    int64_t width;  // inner columns of the largest adapter, or more

    const AdapterRun* first_run(int64_t row) const {
        return std::partition_point(runs, runs + num_runs, [=](const AdapterRun& run) { return run.end <= row; });
    }
    const AdapterRun* end_run() const { return runs + num_runs; }
    bool are_any() const {
        return slots != nullptr && std::any_of(runs, end_run(), [this](const AdapterRun& run) {
            return run.first < run.end && slots[run.slot] != nullptr;
        });
    }
};

// Rows of a tile that have an adapter, in order.
struct TileAdapters {
    static constexpr int MOST = 32;  // rows of any tile
    struct Row {
        const Adapter* adapter;
        int64_t number;  // in the tile
    };
    Row rows[MOST];
    int count = 0;

    TileAdapters(const AdaptedRows& adapted, int64_t begin, int64_t end) {
        if (adapted.slots == nullptr) return;
        for (const AdapterRun* run = adapted.first_run(begin); run < adapted.end_run() && run->first < end; run++) {
            const Adapter* adapter = adapted.slots[run->slot];
            if (adapter == nullptr) continue;
            const int64_t last = std::min<int64_t>(end, run->end);
            for (int64_t row = std::max<int64_t>(begin, run->first); row < last; row++) rows[count++] = {adapter, row - begin};
        }
    }

    // Asks the memory for what the panel's sums will read of B: a few lines here and there, which the core does not foresee.
    template <class T>
    void fetch(int64_t panel) const {
        for (int i = 0; i < count; i++) {
            const Adapter* adapter = rows[i].adapter;
            if (std::any_of(rows, rows + i, [=](const Row& row) { return row.adapter == adapter; })) continue;
            for (int64_t half = 2 * panel; half < std::min(adapter->num_columns, 2 * panel + 2); half++) {
                const AdapterColumns& columns = adapter->columns[half];
                const T* up = (const T*)adapter->up + columns.offset;
                for (int64_t step = 0; step < columns.steps; step++) __builtin_prefetch(up + step * LANES * STEP<T>, 0, 2);
            }
        }
    }
};

// One step of STEP inputs into LANES outputs, of A or B.
template <class T>
struct StepColumns {
    Vec values;
    explicit StepColumns(const T* p) : values(load(p)) {}
    Vec multiply_add(Vec sum, const T* row) const { return fmadd(broadcast(*row), values, sum); }
};

template <>
struct StepColumns<bfloat16> {
    PairColumns<bfloat16> columns;
    explicit StepColumns(const bfloat16* p) {
#if defined(__AVX512BF16__)
        columns.halves[0] = load_bits<__m512bh>(p);
#else
        const Words pairs = load_bits<Words>(p);  // the first of a pair is the low half of the word
        columns.first[0] = (Vec)(pairs << 16);
        columns.second[0] = (Vec)(pairs & 0xffff0000u);
#endif
    }
    Vec multiply_add(Vec sum, const bfloat16* row) const {
        return squadron::multiply_add(sum, RowPair<bfloat16>(row), columns, 0);
    }
};

// Sums [LANES] of one row += its inner columns x its adapter's B.
template <class T>
struct UpRow {
    const T *inner, *up;
    float* sums;
};

// Rows together, so that none waits for its own chain.
template <class T, int count>
void multiply_up(const UpRow<T>* rows, int64_t steps) {
    Vec sums[count];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) sums[i] = load(rows[i].sums);
    for (int64_t step = 0; step < steps; step++)
#pragma GCC unroll 4
        for (int i = 0; i < count; i++)
            sums[i] = StepColumns<T>(rows[i].up + step * LANES * STEP<T>).multiply_add(sums[i], rows[i].inner + step * STEP<T>);
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) store(rows[i].sums, sums[i]);
}

// A leaf's sums of a tile's rows [rows, TILE_COLUMNS] += what their adapters give. `begin`: the tile's first row.
template <class T>
void add_adapters(const AdaptedRows& adapted, const TileAdapters& tile, int64_t leaves, int64_t leaf, int64_t panel, int64_t begin,
                  float* sums) {
    constexpr int TOGETHER = 4;
    const T* inner = (const T*)adapted.inner + (begin * leaves + leaf) * adapted.width;
    for (int half = 0; half < 2; half++) {
        UpRow<T> rows[TOGETHER];
        int64_t steps = 0;  // of the rows that wait
        int waiting = 0;
        const auto multiply_waiting = [&] {
            if (waiting == TOGETHER)
                multiply_up<T, TOGETHER>(rows, steps);
            else
                for (int i = 0; i < waiting; i++) multiply_up<T, 1>(rows + i, steps);
            waiting = 0;
        };
        for (int i = 0; i < tile.count; i++) {
            const auto [adapter, number] = tile.rows[i];
            if (panel * 2 + half >= adapter->num_columns) continue;
            const AdapterColumns& columns = adapter->columns[panel * 2 + half];
            if (columns.steps == 0) continue;
            if (waiting == TOGETHER || columns.steps != steps) multiply_waiting();
            steps = columns.steps;
            rows[waiting++] = {inner + number * leaves * adapted.width + columns.first, (const T*)adapter->up + columns.offset,
                               sums + number * TILE_COLUMNS + half * LANES};
        }
        multiply_waiting();
    }
}

}  // namespace squadron
