// multiply_leaf: rows times a leaf of codes, one unrolled kernel for each number of rows. unpack_leaf.
#include "quantized.h"

#include <algorithm>
#include <utility>

namespace squadron {
namespace {

constexpr int64_t AHEAD = 2048;  // bytes; several groups at once are not the one stream that hardware would fetch by itself

// sums += scale * chain for `count` neighbouring groups of `length` k (GROUP, if there are several): their chains run side by
// side and are added in order. Leaves `a` at the end of them.
template <Codes codes, int count, class T, int rows>
inline __attribute__((always_inline)) void multiply_groups(Rows<T, rows>& a, const char* groups, int64_t length,
                                                           Vec (&sums)[rows][2], Ahead ahead) {
    constexpr int64_t GROUP_BYTES = group_bytes<codes, T>(GROUP);
    constexpr int CACHE_LEVEL = codes == UNPACKED ? 2 : 3;  // as __builtin_prefetch has it: the second, the first
    if (codes != UNPACKED) ahead = {groups + AHEAD, VECTOR_BYTES};
    Vec chains[count][rows][2] = {};
    for (int64_t step = 0; step < length / 2; step += 2) {
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
#pragma GCC unroll 2
            for (int group = 0; group < count; group++) {
                PairColumns<T> columns;
                load_columns<codes>(groups + group * GROUP_BYTES + SCALE_BYTES, step + odd, columns);
                if (codes != INT4 || odd == 0) {
                    __builtin_prefetch(ahead.data, 0, CACHE_LEVEL);
                    ahead.data += ahead.step_bytes;
                }
#pragma GCC unroll 16
                for (int m = 0; m < rows; m++) {
                    const RowPair<T> row = a.pair(m, group * GROUP);
                    chains[group][m][0] = multiply_add(chains[group][m][0], row, columns, 0);
                    chains[group][m][1] = multiply_add(chains[group][m][1], row, columns, 1);
                }
            }
            a.advance(2);
        }
    }
    a.advance((count - 1) * GROUP);
#pragma GCC unroll 2
    for (int group = 0; group < count; group++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const Vec scale = load((const bfloat16*)(groups + group * GROUP_BYTES) + half * LANES);
#pragma GCC unroll 16
            for (int m = 0; m < rows; m++) sums[m][half] = fmadd(chains[group][m][half], scale, sums[m][half]);
        }
}

// Two groups at once where few rows would leave the multipliers waiting for a chain's last sum.
template <class T, Codes codes, int rows>
void kernel(const T* a, int64_t lda, const char* leaf, int64_t length, float* c, Ahead ahead) {
    constexpr int AT_ONCE = rows <= 3 ? 2 : 1;
    constexpr int64_t BYTES = group_bytes<codes, T>(GROUP);
    Rows<T, rows> pointers(a, lda);
    Vec sums[rows][2] = {};
    for (; length >= AT_ONCE * GROUP; length -= AT_ONCE * GROUP, leaf += AT_ONCE * BYTES) {
        multiply_groups<codes, AT_ONCE>(pointers, leaf, GROUP, sums, ahead);
        ahead.data += AT_ONCE * GROUP / 2 * ahead.step_bytes;
    }
    for (; length > 0; length -= GROUP, leaf += BYTES) {
        multiply_groups<codes, 1>(pointers, leaf, std::min(GROUP, length), sums, ahead);
        ahead.data += GROUP / 2 * ahead.step_bytes;
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) store(c + m * TILE_COLUMNS + half * LANES, sums[m][half]);
}

template <class T, Codes codes, int... row>
auto select(int64_t rows, std::integer_sequence<int, row...>) {
    static constexpr decltype(&kernel<T, codes, 1>) kernels[] = {kernel<T, codes, row + 1>...};
    return kernels[rows - 1];
}

}  // namespace

template <class T>
void multiply_leaf(Codes codes, int64_t rows, const T* a, int64_t lda, const char* leaf, int64_t length, float* c,
                   Ahead ahead) {
    constexpr std::make_integer_sequence<int, QUANTIZED_ROWS> counts;
    const auto kernel = codes == INT8   ? select<T, INT8>(rows, counts)
                        : codes == INT4 ? select<T, INT4>(rows, counts)
                                        : select<T, UNPACKED>(rows, counts);
    kernel(a, lda, leaf, length, c, ahead.data != nullptr ? ahead : Ahead{leaf, 0});
}

template void multiply_leaf(Codes, int64_t, const float*, int64_t, const char*, int64_t, float*, Ahead);
template void multiply_leaf(Codes, int64_t, const bfloat16*, int64_t, const char*, int64_t, float*, Ahead);

template <class T>
void unpack_leaf(const char* leaf, int64_t length, char* target) {
    for (; length > 0; length -= GROUP) {
        const int64_t count = std::min(GROUP, length);
        std::memcpy(target, leaf, SCALE_BYTES);
        for (int64_t step = 0; step < count / 2; step++) {
            PairColumns<T> columns;
            load_columns<INT8>(leaf + SCALE_BYTES, step, columns);
            store_unpacked(columns, target + SCALE_BYTES + step * (int64_t)sizeof columns);
        }
        leaf += group_bytes(INT8, count);
        target += group_bytes<UNPACKED, T>(count);
    }
}

template void unpack_leaf<float>(const char*, int64_t, char*);
template void unpack_leaf<bfloat16>(const char*, int64_t, char*);

}  // namespace squadron
