// multiply_tile: one unrolled kernel for each number of rows.
#include "tile.h"

#include <type_traits>

#include "pairs.h"

namespace squadron {
namespace {

// What a step takes of TILE_COLUMNS columns, and of one row: broadcast to all lanes. Of bfloat16, pairs.
struct FloatColumns {
    Vec halves[2];
};

struct FloatRow {
    Vec value;
    explicit FloatRow(const float* p) : value(broadcast(*p)) {}
};

inline Vec multiply_add(Vec sum, const FloatRow& row, const FloatColumns& columns, int half) {
    return fmadd(row.value, columns.halves[half], sum);
}

template <class T>
using Columns = std::conditional_t<std::is_same_v<T, float>, FloatColumns, PairColumns<bfloat16>>;
template <class T>
using Row = std::conditional_t<std::is_same_v<T, float>, FloatRow, RowPair<bfloat16>>;

inline void load_columns(const float* p, FloatColumns& columns) {
    columns.halves[0] = load(p);
    columns.halves[1] = load(p + LANES);
}

inline void load_columns(const bfloat16* p, PairColumns<bfloat16>& columns) {
    for (int half = 0; half < 2; half++) {
#if defined(__AVX512BF16__)
        columns.halves[half] = load_bits<__m512bh>(p + half * 2 * LANES);
#else
        const Words pairs = load_bits<Words>(p + half * 2 * LANES);  // the first of a pair is the low half of the word
        columns.first[half] = (Vec)(pairs << 16);
        columns.second[half] = (Vec)(pairs & 0xffff0000u);
#endif
    }
}

template <class T, int rows>
void kernel(const T* a, int64_t lda, const T* panel, int64_t steps, float* c, int64_t ldc, bool accumulate,
            Ahead ahead) {
    Vec sums[rows][2];
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            sums[m][half] = accumulate ? load(c + m * ldc + half * LANES) : broadcast(0.0f);

    // Three rows to a pointer, which x86 can address as p, p + lda and p + 2 * lda. A pointer a row, as the compiler would
    // have it, does not fit the registers; the empty asm keeps it from working that out again.
    constexpr int POINTERS = (rows + 2) / 3;
    const T* pointers[POINTERS];
#pragma GCC unroll 16
    for (int i = 0; i < POINTERS; i++) pointers[i] = a + 3 * i * lda;

    const auto step = [&](int64_t k) __attribute__((always_inline)) {
        Columns<T> columns;
        load_columns(panel + k * TILE_COLUMNS * STEP<T>, columns);
#pragma GCC unroll 16
        for (int m = 0; m < rows; m++) {
            const Row<T> row(pointers[m / 3] + m % 3 * lda);
            sums[m][0] = multiply_add(sums[m][0], row, columns, 0);
            sums[m][1] = multiply_add(sums[m][1], row, columns, 1);
        }
#pragma GCC unroll 16
        for (int i = 0; i < POINTERS; i++) {
            pointers[i] += STEP<T>;
            asm("" : "+r"(pointers[i]));
        }
    };
    if (ahead.data != nullptr)
        for (int64_t k = 0; k < steps; k++) {
            __builtin_prefetch(ahead.data + k * ahead.step_bytes, 0, 2);
            step(k);
        }
    else
        for (int64_t k = 0; k < steps; k++) step(k);

#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) store(c + m * ldc + half * LANES, sums[m][half]);
}

template <class T>
using Kernel = decltype(&kernel<T, 1>);

template <class T, int... row>
Kernel<T> select(int64_t rows, std::integer_sequence<int, row...>) {
    static constexpr Kernel<T> kernels[] = {kernel<T, row + 1>...};
    return kernels[rows - 1];
}

}  // namespace

template <class T>
void multiply_tile(int64_t rows, const T* a, int64_t lda, const T* panel, int64_t steps, float* c, int64_t ldc,
                   bool accumulate, Ahead ahead) {
    select<T>(rows, std::make_integer_sequence<int, TILE_ROWS<T>>())(a, lda, panel, steps, c, ldc, accumulate, ahead);
}

template void multiply_tile(int64_t, const float*, int64_t, const float*, int64_t, float*, int64_t, bool, Ahead);
template void multiply_tile(int64_t, const bfloat16*, int64_t, const bfloat16*, int64_t, float*, int64_t, bool, Ahead);

}  // namespace squadron
