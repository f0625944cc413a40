// multiply_tile: one unrolled kernel for each number of rows, or tile registers.
#include "tile.h"

#include "pairs.h"
#include "step.h"
#include "tile_registers.h"

namespace squadron {
namespace {

using squadron::add_step;  // beside our own

#if !defined(__AVX512BF16__)

template <int which, int rows>
inline __attribute__((always_inline)) void add_half_step(Vec (&sums)[rows][2], const bfloat16* const* pointers, int64_t lda,
                                                         const bfloat16* first, const bfloat16* second) {
    const Vec columns[2] = {of_pairs<which>(load_bits<Words>(first)), of_pairs<which>(load_bits<Words>(second))};
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++) {
        asm("" ::: "memory");
        const Vec row = of_pairs<which>(broadcast_word(load_bits<uint32_t>(pointers[m / 3] + m % 3 * lda)));
        sums[m][0] = fmadd(row, columns[0], sums[m][0]);
        sums[m][1] = fmadd(row, columns[1], sums[m][1]);
    }
}

// All rows by the first of the pairs, then all by the second: two vectors of columns at a time, and more rows in registers. The
// empty asm has each pair read where it is used: the compiler would read them all before, into registers that it lacks.
template <int rows>
inline __attribute__((always_inline)) void add_step(Vec (&sums)[rows][2], const bfloat16* const* pointers, int64_t lda,
                                                    const bfloat16* first, const bfloat16* second) {
    add_half_step<0>(sums, pointers, lda, first, second);
    add_half_step<1>(sums, pointers, lda, first, second);
}

#endif

template <class T, int rows>
void kernel(const T* a, int64_t lda, const T* panel, int64_t steps, float* c, Ahead ahead) {
    Vec sums[rows][2] = {};

    // Three rows to a pointer, which x86 can address as p, p + lda and p + 2 * lda. A pointer a row, as the compiler would
    // have it, does not fit the registers; the empty asm keeps it from working that out again.
    constexpr int POINTERS = (rows + 2) / 3;
    const T* pointers[POINTERS];
#pragma GCC unroll 16
    for (int i = 0; i < POINTERS; i++) pointers[i] = a + 3 * i * lda;

    const auto step = [&](int64_t k) __attribute__((always_inline)) {
        const T* columns = panel + k * TILE_COLUMNS * STEP<T>;
        add_step<rows>(sums, pointers, lda, columns, columns + LANES * STEP<T>);
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
        for (int half = 0; half < 2; half++) store(c + m * TILE_COLUMNS + half * LANES, sums[m][half]);
}

constexpr int64_t AHEAD = 2048;  // bytes; two panels are not the one stream that hardware would fetch by itself

template <class T, int rows>
void kernel_of_two(const T* a, int64_t lda, const T* panel, int64_t apart, int64_t steps, float* c, int64_t c_apart) {
    Vec sums[2][rows][2] = {};
    for (int64_t k = 0; k < steps; k++, a += STEP<T>, panel += TILE_COLUMNS * STEP<T>)
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            __builtin_prefetch((const char*)(panel + i * apart) + AHEAD, 0, 3);
            add_step<rows>(sums[i], &a, lda, panel + i * apart, panel + i * apart + LANES * STEP<T>);
        }
#pragma GCC unroll 8
    for (int i = 0; i < 4 * rows; i++)
        store(c + i / (2 * rows) * c_apart + i % (2 * rows) * LANES, sums[i / (2 * rows)][i / 2 % rows][i % 2]);
}

template <class T>
using Kernel = decltype(&kernel<T, 1>);

template <class T, int... row>
Kernel<T> select(int64_t rows, std::integer_sequence<int, row...>) {
    static constexpr Kernel<T> kernels[] = {kernel<T, row + 1>...};
    return kernels[rows - 1];
}

#if defined(__AMX_BF16__)

void multiply_by_registers(int64_t rows, const bfloat16* a, int64_t lda, const bfloat16* panel, int64_t steps, float* c, Ahead ahead) {
    with_register_tile(rows, a, lda, [&](auto& tile) {
        tile.clear();
        for (int64_t step = 0; step < steps; step += REGISTER_STEPS) {
            const int64_t count = std::min(REGISTER_STEPS, steps - step);
            ahead.fetch(count);
            tile.add(2 * step, 2 * count, panel + step * 2 * TILE_COLUMNS);
        }
        tile.store(c, TILE_COLUMNS);
    });
}

#endif

}  // namespace

template <class T>
void multiply_tile(int64_t rows, const T* a, int64_t lda, const T* panel, int64_t steps, float* c, Ahead ahead) {
#if defined(__AMX_BF16__)
    if constexpr (HAS_TILE_REGISTERS<T>)
        multiply_by_registers(rows, a, lda, panel, steps, c, ahead);
    else
#endif
        select<T>(rows, std::make_integer_sequence<int, TILE_ROWS<T>>())(a, lda, panel, steps, c, ahead);
}

template <class T>
void multiply_two_tiles(int64_t rows, const T* a, int64_t lda, const T* panel, int64_t apart, int64_t steps, float* c,
                        int64_t c_apart) {
    (rows == 1 ? kernel_of_two<T, 1> : kernel_of_two<T, 2>)(a, lda, panel, apart, steps, c, c_apart);
}

template void multiply_two_tiles(int64_t, const bfloat16*, int64_t, const bfloat16*, int64_t, int64_t, float*, int64_t);
template void multiply_tile(int64_t, const float*, int64_t, const float*, int64_t, float*, Ahead);
template void multiply_tile(int64_t, const bfloat16*, int64_t, const bfloat16*, int64_t, float*, Ahead);

}  // namespace squadron
