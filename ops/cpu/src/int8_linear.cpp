// Products of 8-bit integers: weights as they were published, inputs rounded to as many bits, sums exact.
//
// A leaf's sum is an integer, whatever order it is taken in; then it is multiplied by the scale of the row (within the leaf) and
// that of the column. Leaves are added as a balanced binary tree. So every level gives the same bits.
#include <algorithm>
#include <utility>

#include "api.h"
#include "finish.h"
#include "quantized.h"
#include "tile_registers.h"

namespace squadron {
namespace {

constexpr int64_t FOURFOLD = 4;  // k of a step
constexpr int64_t STEP_BYTES = 2 * VECTOR_BYTES;
constexpr int64_t BLOCK_BYTES = 512 << 10;  // of inputs, kept in a core's second-level cache while all panels pass by
constexpr int64_t AHEAD = 4096;  // bytes
constexpr int ROWS = QUANTIZED_ROWS<bfloat16>;  // of a tile
constexpr int ZERO_POINT = 128;  // of inputs: the multipliers take one factor without a sign

// A leaf of a panel: for each four k a vector of words for either half of the columns, a byte for each k; then the columns'
// scales [TILE_COLUMNS] float32 and ZERO_POINT times the sums of their codes [TILE_COLUMNS] int32.
constexpr int64_t int8_leaf_bytes(int64_t length) {
    return length / FOURFOLD * STEP_BYTES + TILE_COLUMNS * (int64_t)(sizeof(float) + sizeof(int32_t));
}

// Without VNNI: two bytes of four at a time, widened to sixteen bits, in which no product of theirs is cut off.
inline Ints multiply_add(Ints sum, const uint8_t* inputs, const char* codes) {
#if defined(__AVX512VNNI__)
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(load_bits<int>(inputs)), load_bits<__m512i>(codes));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i bytes = load_bits<__m256i>(codes), row = _mm256_set1_epi32(load_bits<int>(inputs));
    const __m256i even = _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_and_si256(row, _mm256_set1_epi16(255)));
    const __m256i odd = _mm256_madd_epi16(_mm256_srai_epi16(bytes, 8), _mm256_srli_epi16(row, 8));
    return sum + (Ints)even + (Ints)odd;
#elif defined(__AVX512BW__)
    const __m512i bytes = load_bits<__m512i>(codes), row = _mm512_set1_epi32(load_bits<int>(inputs));
    const __m512i even = _mm512_madd_epi16(_mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8), _mm512_and_si512(row, _mm512_set1_epi16(255)));
    const __m512i odd = _mm512_madd_epi16(_mm512_srai_epi16(bytes, 8), _mm512_srli_epi16(row, 8));
    return sum + (Ints)even + (Ints)odd;
#else
    const Words words = load_bits<Words>(codes);
    for (int i = 0; i < FOURFOLD; i++) sum += ((Ints)(words << (24 - 8 * i)) >> 24) * (int32_t)inputs[i];
    return sum;
#endif
}

// What is behind a leaf's codes.
struct LeafEnd {
    const float* scales;
    const int32_t* excess;

    explicit LeafEnd(const char* end) : scales((const float*)end), excess((const int32_t*)(scales + TILE_COLUMNS)) {}
    Vec scaled(Ints sum, int half, float row_scale) const {
        const Vec number = to_floats(sum - load_bits<Ints>(excess + half * LANES));
        return number * (broadcast(row_scale) * load(scales + half * LANES));
    }
};

#if defined(__AMX_BF16__)

void multiply_integers(int64_t rows, const uint8_t* a, int64_t lda, const float* scales, int64_t scale_stride, const char* leaf,
                       int64_t length, float* c) {
    with_register_tile(rows, a, lda, [&](auto& tile) {
        tile.clear();
        for (int64_t k = 0; k < length; k += REGISTER_LENGTH<uint8_t>) {
            const char* columns = leaf + k / FOURFOLD * STEP_BYTES;
            Ahead{columns + AHEAD, VECTOR_BYTES}.fetch(2 * REGISTER_STEPS);
            tile.add(k, std::min(REGISTER_LENGTH<uint8_t>, length - k), columns);
        }
        tile.store(c, TILE_COLUMNS);
    });
    const LeafEnd end(leaf + length / FOURFOLD * STEP_BYTES);
    for (int64_t m = 0; m < rows; m++)
        for (int half = 0; half < 2; half++) {
            float* sum = c + m * TILE_COLUMNS + half * LANES;
            store(sum, end.scaled(load_bits<Ints>(sum), half, scales[m * scale_stride]));
        }
}

#else

template <int rows>
void kernel(const uint8_t* a, int64_t lda, const float* scales, int64_t scale_stride, const char* leaf, int64_t length, float* c) {
    Ints sums[rows][2] = {};
    for (int64_t k = 0; k < length; k += FOURFOLD, leaf += STEP_BYTES) {
        __builtin_prefetch(leaf + AHEAD, 0, 3);
        __builtin_prefetch(leaf + AHEAD + VECTOR_BYTES, 0, 3);
#pragma GCC unroll 16
        for (int m = 0; m < rows; m++) {
            sums[m][0] = multiply_add(sums[m][0], a + m * lda + k, leaf);
            sums[m][1] = multiply_add(sums[m][1], a + m * lda + k, leaf + VECTOR_BYTES);
        }
    }
    const LeafEnd end(leaf);
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
        for (int half = 0; half < 2; half++)
            store(c + m * TILE_COLUMNS + half * LANES, end.scaled(sums[m][half], half, scales[m * scale_stride]));
}

template <int... row>
auto select(int64_t rows, std::integer_sequence<int, row...>) {
    static constexpr decltype(&kernel<1>) kernels[] = {kernel<row + 1>...};
    return kernels[rows - 1];
}

void multiply_integers(int64_t rows, const uint8_t* a, int64_t lda, const float* scales, int64_t scale_stride, const char* leaf,
                       int64_t length, float* c) {
    select(rows, std::make_integer_sequence<int, ROWS>())(a, lda, scales, scale_stride, leaf, length, c);
}

#endif

template <class T>
struct Int8Linear {
    const PackedWeight& weight;
    const uint8_t* x;
    const float* scales;  // [rows, leaves]
    int64_t rows;
    Result<T> result;

    int64_t row_blocks() const {
        const int64_t block = std::max<int64_t>(1, BLOCK_BYTES / weight.in_features / ROWS) * ROWS;
        return (rows + block - 1) / block;
    }
    void multiply_panel(int64_t panel, Range block, Piece& piece) const {
        const int64_t count = block.end - block.begin, tiles = (count + ROWS - 1) / ROWS;
        for (int64_t i = 0; i < tiles; i++) {
            const Range part = share_of_wholes(count, WHOLE_ROWS<bfloat16>, i, tiles);
            sum_leaves(panel, {block.begin + part.begin, block.begin + part.end}, piece);
        }
    }
    void sum_leaves(int64_t panel, Range tile, Piece& piece) const {
        alignas(64) float sums[MAX_TREE_DEPTH][ROWS * TILE_COLUMNS];
        const int64_t length = weight.leaf_length(), tile_rows = tile.end - tile.begin;
        const char* data = (const char*)weight.data + panel * weight.panel_bytes();
        int depth = 0;
        for (int64_t leaf = 0; leaf < weight.leaves; leaf++) {
            multiply_integers(tile_rows, x + tile.begin * weight.in_features + leaf * length, weight.in_features,
                              scales + tile.begin * weight.leaves + leaf, weight.leaves, data + weight.leaf_offset(leaf), length,
                              sums[depth]);
            close_subtrees(sums, leaf, tile_rows, depth);
        }
        if (piece.may_write()) result.finish(weight, sums[0], panel, tile);
    }
};

// Codes of a leaf of a row, and its scale: NaN if its numbers are not all finite.
template <class T>
float encode_leaf(const T* x, int64_t length, float scale, uint8_t* codes) {
    Vec peaks = broadcast(0.0f), zeros = broadcast(0.0f);
    for (int64_t i = 0; i < length; i += LANES) {
        const Vec value = load(x + i, length - i);
        peaks = largest(largest(value, -value), peaks);
        zeros += value * broadcast(0.0f);
    }
    if (scale == 0.0f) scale = std::max(lane_max(peaks), 1e-30f) / 127.0f;
    const Vec inverse = broadcast(1.0f / scale);
    for (int64_t i = 0; i < length; i += LANES) {
        const Vec nearest = round_to_integers(smallest(broadcast(200.0f), largest(broadcast(-200.0f), load(x + i, length - i) * inverse)));
        const Vec code = smallest(broadcast(127.0f), largest(broadcast(-128.0f), nearest)) + broadcast((float)ZERO_POINT);
        const Ints integers = __builtin_convertvector(code, Ints);
        for (int64_t lane = 0; lane < std::min<int64_t>(LANES, length - i); lane++) codes[i + lane] = (uint8_t)integers[lane];
    }
    return scale + lane_sum(zeros);
}

void pack_panel(const PackedWeight& weight, int64_t panel, const int8_t* codes, const float* scales) {
    const int64_t length = weight.leaf_length();
    char* data = (char*)weight.data + panel * weight.panel_bytes();
    std::fill_n(data, weight.panel_bytes(), (char)0);
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++) {
        char* target = data + weight.leaf_offset(leaf);
        float* of_columns = (float*)(target + length / FOURFOLD * STEP_BYTES);
        int32_t* excess = (int32_t*)(of_columns + TILE_COLUMNS);
        for (int column = 0; column < TILE_COLUMNS; column++) {
            const int64_t row = weight.source_row(panel, column);
            if (row < 0) continue;
            of_columns[column] = scales[row];
            for (int64_t k = 0; k < length; k++) {
                const int8_t code = codes[row * weight.in_features + leaf * length + k];
                target[k / FOURFOLD * STEP_BYTES + column / LANES * VECTOR_BYTES + column % LANES * 4 + k % FOURFOLD] = code;
                excess[column] += ZERO_POINT * code;
            }
        }
    }
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API void squadron_int8_offsets(const PackedWeight* weight, int64_t* offsets) {
    for (int64_t leaf = 0; leaf <= weight->leaves; leaf++) offsets[leaf] = leaf * int8_leaf_bytes(weight->leaf_length());
}

SQUADRON_API void squadron_pack_int8(const PackedWeight* weight, const int8_t* codes, const float* scales, int32_t threads) {
    for_each(weight->panels(), 1, threads, [=](int64_t panel) { pack_panel(*weight, panel, codes, scales); });
}

SQUADRON_API void squadron_encode_rows(const void* x, int64_t rows, int64_t in, int64_t leaves, float scale, uint8_t* codes,
                                       float* scales, int32_t dtype, int32_t threads) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each(rows * leaves, 4, threads, [=](int64_t i) {
            const int64_t length = in / leaves;
            scales[i] = encode_leaf((const T*)x + i * length, length, scale, codes + i * length);
        });
    });
}

SQUADRON_API void squadron_int8_linear(const PackedWeight* weight, const uint8_t* x, const float* scales, int64_t rows,
                                       const void* bias, void* out, int32_t output, int32_t threads) {
    if (rows == 0) return;
    with_dtype(weight->dtype, [&](auto type) {
        using T = decltype(type);
        const Int8Linear<T> linear{*weight, x, scales, rows, {(const T*)bias, out, (Output)output}};
        const int64_t panels = weight->panels(), blocks = linear.row_blocks();
        perform({blocks * panels, threads, [=](Piece& piece) {
                     const Range block = share_of_wholes(rows, WHOLE_ROWS<bfloat16>, piece.number / panels, blocks);
                     linear.multiply_panel(piece.number % panels, block, piece);
                 }});
    });
}
