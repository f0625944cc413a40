// multiply_parts: one unrolled kernel for each number of rows, or tile registers.
#include "parts.h"

#include <utility>

#include "pairs.h"
#include "step.h"
#include "tile_registers.h"

namespace squadron {
namespace {

using squadron::add_step;  // beside our own

#if !defined(__AVX512BF16__)

template <int rows>
inline __attribute__((always_inline)) void add_step(Vec (&sums)[rows][2], const float* const* pointers, int64_t lda,
                                                    const bfloat16* first, const bfloat16* second) {
    const Words pairs[2] = {load_bits<Words>(first), load_bits<Words>(second)};
    add_numbers<rows>(sums, pointers, lda, 0, {of_pairs<0>(pairs[0]), of_pairs<0>(pairs[1])});
    add_numbers<rows>(sums, pointers, lda, 1, {of_pairs<1>(pairs[0]), of_pairs<1>(pairs[1])});
}

#endif

template <class T, int rows>
void kernel(const RowOf<T>* a, int64_t lda, const Part<T>* parts, int64_t count, int64_t steps, int64_t stride, float* c,
            int64_t ldc, bool accumulate) {
    Vec sums[rows][2];
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
            sums[m][half] = accumulate ? load(c + m * ldc + half * LANES) : broadcast(0.0f);

    constexpr int POINTERS = (rows + 2) / 3;
    const RowOf<T>* pointers[POINTERS];
#pragma GCC unroll 16
    for (int i = 0; i < POINTERS; i++) pointers[i] = a + 3 * i * lda;

    for (int64_t part = 0; part < count; part++) {
        const T *first = parts[part].halves[0], *second = parts[part].halves[1];
        const int64_t to_first = parts[part].ahead[0] - first, to_second = parts[part].ahead[1] - second;
        for (int64_t k = 0; k < steps; k++, first += stride, second += stride) {
            __builtin_prefetch(first + to_first, 0, 2);
            __builtin_prefetch(second + to_second, 0, 2);
            add_step<rows>(sums, pointers, lda, first, second);
#pragma GCC unroll 16
            for (int i = 0; i < POINTERS; i++) {
                pointers[i] += STEP<T>;
                asm("" : "+r"(pointers[i]));
            }
        }
    }

#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) store(c + m * ldc + half * LANES, sums[m][half]);
}

template <class T, int... row>
auto select(int64_t rows, std::integer_sequence<int, row...>) {
    static constexpr decltype(&kernel<T, 1>) kernels[] = {kernel<T, row + 1>...};
    return kernels[rows - 1];
}

#if defined(__AMX_BF16__)

// As many steps at a time as registers have, of one part as they lie, or of several (as values are) from a copy.
void multiply_by_registers(int64_t rows, const bfloat16* a, int64_t lda, const Part<bfloat16>* parts, int64_t count, int64_t steps,
                           int64_t stride, float* c, int64_t ldc, bool accumulate) {
    constexpr int64_t HALF = COLUMNS_BYTES / 2;
    alignas(64) char copy[REGISTER_STEPS * COLUMNS_BYTES];
    with_register_tile(rows, a, lda, [&](auto& tile) {
        accumulate ? tile.load(c, ldc) : tile.clear();
        const Part<bfloat16>* part = parts;
        int64_t first = 0;  // of the part's steps, the next one
        for (int64_t step = 0; step < count * steps; step += REGISTER_STEPS) {
            const int64_t these = std::min(REGISTER_STEPS, count * steps - step);
            const bool is_one_part = first + REGISTER_STEPS <= steps;
            if (is_one_part)
                tile.add_columns(2 * step, 2 * these, part->halves[0] + first * stride, part->halves[1] + first * stride,
                                 stride * (int64_t)sizeof(bfloat16));
            for (int64_t i = 0; i < these; i++) {
                for (int half = 0; half < 2; half++) {
                    __builtin_prefetch(part->ahead[half] + first * stride, 0, 2);
                    if (!is_one_part)
                        store_bits(copy + i * COLUMNS_BYTES + half * HALF, load_bits<Words>(part->halves[half] + first * stride));
                }
                if (++first == steps) part++, first = 0;
            }
            if (!is_one_part) tile.add(2 * step, 2 * these, copy);
        }
        tile.store(c, ldc);
    });
}

#endif

}  // namespace

template <class T>
void multiply_parts(int64_t rows, const RowOf<T>* a, int64_t lda, const Part<T>* parts, int64_t count, int64_t steps,
                    int64_t stride, float* c, int64_t ldc, bool accumulate) {
#if defined(__AMX_BF16__)
    if constexpr (HAS_TILE_REGISTERS<T>)
        multiply_by_registers(rows, a, lda, parts, count, steps, stride, c, ldc, accumulate);
    else
#endif
        select<T>(rows, std::make_integer_sequence<int, TILE_ROWS<T>>())(a, lda, parts, count, steps, stride, c, ldc, accumulate);
}

template void multiply_parts(int64_t, const RowOf<float>*, int64_t, const Part<float>*, int64_t, int64_t, int64_t, float*, int64_t, bool);
template void multiply_parts(int64_t, const RowOf<bfloat16>*, int64_t, const Part<bfloat16>*, int64_t, int64_t, int64_t, float*, int64_t, bool);

}  // namespace squadron
