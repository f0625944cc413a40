// multiply_leaf: rows times a leaf of codes, one unrolled kernel for each number of rows, or tile registers.
#include "quantized.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tile_registers.h"

namespace squadron {
namespace {

constexpr int64_t AHEAD = 4096;  // bytes; several groups at once are not the one stream that hardware would fetch by itself

// sums += scale * chain for `count` neighbouring groups of `length` k (GROUP, if there are several): their chains run side by
// side and are added in order. Leaves `a` at the end of them. If it keeps (one group), kept <- the group with its codes UNPACKED.
template <Codes codes, int count, bool keeps, class T, int rows>
inline __attribute__((always_inline)) void multiply_groups(Rows<T, rows>& a, const char* groups, int64_t length,
                                                           Vec (&sums)[rows][2], Ahead ahead, char* kept) {
    constexpr int64_t GROUP_BYTES = group_bytes<codes, T>(GROUP);
    constexpr bool IS_READY = codes == UNPACKED || keeps;  // fetched by the tiles of the panel before
    constexpr int CACHE_LEVEL = IS_READY ? 2 : 3;          // as __builtin_prefetch has it: the second, the first
    if (!IS_READY) ahead = {groups + AHEAD, VECTOR_BYTES};
    if (keeps) std::memcpy(kept, groups, SCALE_BYTES);
    Vec chains[count][rows][2] = {};
    for (int64_t step = 0; step < length / 2; step += 2) {
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
#pragma GCC unroll 2
            for (int group = 0; group < count; group++) {
                PairColumns<T> columns;
                load_columns<codes>(groups + group * GROUP_BYTES + SCALE_BYTES, step + odd, columns);
                if (keeps) store_unpacked(columns, kept + SCALE_BYTES + (step + odd) * (int64_t)sizeof columns);
                if (IS_READY || codes != INT4 || odd == 0) {
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

// Two groups at once where few rows would leave the multipliers waiting for a chain's last sum; but not of eight bits where a pair
// is one instruction: memory gives more to one stream than a chain's latency costs.
template <class T, Codes codes, int rows, bool keeps = false>
void kernel(const T* a, int64_t lda, const char* leaf, int64_t length, float* c, char* kept, Ahead ahead) {
    constexpr int AT_ONCE = rows <= 3 && !keeps && (codes != INT8 || !IS_ONE_PRODUCT<T>) ? 2 : 1;
    constexpr int64_t BYTES = group_bytes<codes, T>(GROUP);
    Rows<T, rows> pointers(a, lda);
    Vec sums[rows][2] = {};
    for (; length >= AT_ONCE * GROUP; length -= AT_ONCE * GROUP, leaf += AT_ONCE * BYTES) {
        multiply_groups<codes, AT_ONCE, keeps>(pointers, leaf, GROUP, sums, ahead, kept);
        ahead.data += AT_ONCE * GROUP / 2 * ahead.step_bytes;
        if (keeps) kept += group_bytes<UNPACKED, T>(GROUP);
    }
    for (; length > 0; length -= GROUP, leaf += BYTES) {
        multiply_groups<codes, 1, keeps>(pointers, leaf, std::min(GROUP, length), sums, ahead, kept);
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

template <class T, Codes codes, int... row>
auto select_keeping(int64_t rows, std::integer_sequence<int, row...>) {
    static constexpr decltype(&kernel<T, codes, 1>) kernels[] = {kernel<T, codes, FEWEST_KEPT<T> + row, true>...};
    return kernels[rows - FEWEST_KEPT<T>];
}

template <class T>
void by_vectors(Codes codes, bool is_unpacked, int64_t rows, const T* a, int64_t lda, const char* leaf, int64_t length, float* c,
                char* kept, Ahead ahead) {
    constexpr std::make_integer_sequence<int, QUANTIZED_ROWS<T>> counts;
    constexpr std::make_integer_sequence<int, QUANTIZED_ROWS<T> + 1 - FEWEST_KEPT<T>> keeping;
    const auto kernel = kept != nullptr ? codes == INT8 ? select_keeping<T, INT8>(rows, keeping) : select_keeping<T, INT4>(rows, keeping)
                        : is_unpacked   ? select<T, UNPACKED>(rows, counts)
                        : codes == INT8 ? select<T, INT8>(rows, counts)
                                        : select<T, INT4>(rows, counts);
    kernel(a, lda, leaf, length, c, kept, ahead);
}

#if defined(__AMX_BF16__)

// The groups of a span have one scale: their sums stay in the registers until its end.
template <Codes codes, int64_t span>
void multiply_by_registers(int64_t rows, const bfloat16* a, int64_t lda, const char* group, int64_t length, float* c, char* kept,
                           Ahead ahead) {
    constexpr bool IS_READY = codes == UNPACKED;
    alignas(64) char place[GROUP / 2 * COLUMNS_BYTES];
    std::fill_n(c, rows * TILE_COLUMNS, 0.0f);
    with_register_tile(rows, a, lda, [&](auto& tile) {
        for (int64_t k = 0; k < length; k += GROUP) {
            const int64_t count = std::min(GROUP, length - k);
            const char* columns = group + SCALE_BYTES;
            if (IS_READY || kept != nullptr) ahead.fetch(count / 2);
            if (!IS_READY) {
                if (kept == nullptr) Ahead{group + AHEAD, VECTOR_BYTES}.fetch(count / (codes == INT8 ? 2 : QUAD));
                char* target = kept != nullptr ? kept + SCALE_BYTES : place;
                for (int64_t step = 0; step < count / 2; step++) {
                    PairColumns<bfloat16> pair;
                    load_columns<codes>(columns, step, pair);
                    store_unpacked(pair, target + step * COLUMNS_BYTES);
                }
                columns = target;
            }
            if (k % span == 0) tile.clear();
            for (int64_t i = 0; i < count; i += REGISTER_LENGTH<bfloat16>)
                tile.add(k + i, std::min(REGISTER_LENGTH<bfloat16>, count - i), columns + i / 2 * COLUMNS_BYTES);
            if ((k + GROUP) % span == 0 || k + GROUP >= length) tile.add_scaled_to(c, (const bfloat16*)group);
            if (kept != nullptr) {
                std::memcpy(kept, group, SCALE_BYTES);
                kept += group_bytes<UNPACKED, bfloat16>(count);
            }
            group += group_bytes<codes, bfloat16>(count);
        }
    });
}

#endif

}  // namespace

template <class T>
void multiply_leaf(Codes codes, bool is_unpacked, int64_t rows, const T* a, int64_t lda, const char* leaf, int64_t length, float* c,
                   char* kept, Ahead ahead) {
    if (ahead.data == nullptr) ahead = {leaf, 0};
#if defined(__AMX_BF16__)
    if constexpr (HAS_TILE_REGISTERS<T>) {
        const auto of_int8 = is_unpacked ? multiply_by_registers<UNPACKED, INT8_SPAN> : multiply_by_registers<INT8, INT8_SPAN>;
        const auto of_int4 = is_unpacked ? multiply_by_registers<UNPACKED, GROUP> : multiply_by_registers<INT4, GROUP>;
        (codes == INT8 ? of_int8 : of_int4)(rows, a, lda, leaf, length, c, kept, ahead);
    } else
#endif
        by_vectors<T>(codes, is_unpacked, rows, a, lda, leaf, length, c, kept, ahead);
}

template void multiply_leaf(Codes, bool, int64_t, const float*, int64_t, const char*, int64_t, float*, char*, Ahead);
template void multiply_leaf(Codes, bool, int64_t, const bfloat16*, int64_t, const char*, int64_t, float*, char*, Ahead);

}  // namespace squadron
