// Weights as a checkpoint was published with: codes with zero points, and a scale for each run of inputs.
//
// A leaf is cut into runs: inputs that share a scale, QUAD or a multiple of it. Their lengths are the weight's, the same in all
// panels. A run is its columns' scales [TILE_COLUMNS] float32, their zero points [TILE_COLUMNS] int16, and then their codes, laid
// out as those of INT4 (ZERO4) and INT8 (the others) are. What is multiplied is a code less its zero point, which bfloat16 holds.
#pragma once

#include <cstdint>

#include "linear.h"
#include "pairs.h"
#include "quantized.h"

namespace squadron {

constexpr int64_t HEADER_BYTES = TILE_COLUMNS * (sizeof(float) + sizeof(int16_t));  // of a run

constexpr bool is_published(int32_t codes) { return codes >= ZERO4 && codes <= FLOAT8; }

constexpr int64_t run_bytes(Codes codes, int64_t length) {
    return HEADER_BYTES + length / (codes == ZERO4 ? QUAD : 2) * VECTOR_BYTES;
}

template <class T>
constexpr int64_t unpacked_run_bytes(int64_t length) {
    return HEADER_BYTES + length / 2 * (int64_t)sizeof(PairColumns<T>);
}

// Where inputs are not digits.
inline Place place_of(Codes kind, int64_t k, int column) {
    const int half = column / LANES, lane = column % LANES;
    if (kind != INT4 && kind != ZERO4) return {k / 2 * VECTOR_BYTES + lane / 4 * 16 + half * 8 + lane % 4 * 2 + k % 2, 0};
    const int nibble = (int)(k / 2 % 2) * 2 + half;
    return {k / QUAD * VECTOR_BYTES + lane * 4 + k % 2 * 2 + nibble / 2, nibble % 2 * 4};
}

// c [rows, TILE_COLUMNS] = a [rows, the runs' lengths together] (row stride lda) x the runs; 1 <= rows <= QUANTIZED_ROWS. A run is
// what multiply_tile makes of it; from the first run on, each one's sum times its scale is added to the sum. If kept is not
// null (rows >= FEWEST_KEPT): kept <- the runs with their codes UNPACKED, for other tiles to read.
template <class T>
void multiply_runs(Codes codes, int64_t rows, const T* a, int64_t lda, const char* data, const int32_t* lengths, int64_t count,
                   float* c, char* kept, Ahead ahead);

}  // namespace squadron
