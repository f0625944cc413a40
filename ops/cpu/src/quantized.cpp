// multiply_leaf: rows times a leaf of codes, one unrolled kernel for each number of rows.
#include "quantized.h"

#include <algorithm>
#include <utility>

namespace squadron {
namespace {

constexpr int64_t AHEAD = 2048;  // bytes; several groups at once are not the one stream that hardware would fetch by itself

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

// sums += scale * chain for `count` neighbouring groups of `length` k (GROUP, if there are several): their chains run side by
// side and are added in order. Leaves `a` at the end of them.
template <Codes codes, int count, class T, int rows>
inline __attribute__((always_inline)) void multiply_groups(Rows<T, rows>& a, const char* groups, int64_t length,
                                                           Vec (&sums)[rows][2]) {
    constexpr int64_t GROUP_BYTES = group_bytes(codes, GROUP);
    const char* ahead = groups + AHEAD;
    Vec chains[count][rows][2] = {};
    for (int64_t step = 0; step < length / 2; step += 2) {
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
#pragma GCC unroll 2
            for (int group = 0; group < count; group++) {
                CodeColumns<T> columns;
                load_columns<codes>(groups + group * GROUP_BYTES + SCALE_BYTES, step + odd, columns);
                if (codes == INT8 || odd == 0) {
                    __builtin_prefetch(ahead);
                    ahead += VECTOR_BYTES;
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
void kernel(const T* a, int64_t lda, const char* leaf, int64_t length, float* c) {
    constexpr int AT_ONCE = rows <= 3 ? 2 : 1;
    Rows<T, rows> pointers(a, lda);
    Vec sums[rows][2] = {};
    for (; length >= AT_ONCE * GROUP; length -= AT_ONCE * GROUP, leaf += AT_ONCE * group_bytes(codes, GROUP))
        multiply_groups<codes, AT_ONCE>(pointers, leaf, GROUP, sums);
    for (; length > 0; length -= GROUP, leaf += group_bytes(codes, GROUP))
        multiply_groups<codes, 1>(pointers, leaf, std::min(GROUP, length), sums);
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
void multiply_leaf(Codes codes, int64_t rows, const T* a, int64_t lda, const char* leaf, int64_t length, float* c) {
    constexpr std::make_integer_sequence<int, QUANTIZED_ROWS> counts;
    (codes == INT8 ? select<T, INT8>(rows, counts) : select<T, INT4>(rows, counts))(a, lda, leaf, length, c);
}

template void multiply_leaf(Codes, int64_t, const float*, int64_t, const char*, int64_t, float*);
template void multiply_leaf(Codes, int64_t, const bfloat16*, int64_t, const char*, int64_t, float*);

}  // namespace squadron
