#include "compact.h"

#include <algorithm>
#include <numeric>

#include "pairs.h"
#include "tile_registers.h"

namespace squadron {

#if defined(__AVX512BF16__)

namespace {

constexpr int64_t SAMPLED_STEPS = 64;  // of a leaf, at least, tell which high bytes it has most of
constexpr uint8_t NO_CODE = 16;
constexpr int64_t AHEAD = 2304, FAR_AHEAD = 16384;  // bytes; into the first cache, and into the second
constexpr int FEW_ROWS = 2;                        // with which that costs more than it gains

// Low bytes and high bytes of a step of a plain leaf.
struct Bytes {
    alignas(64) uint8_t low[STEP_WEIGHTS], high[STEP_WEIGHTS];

    explicit Bytes(const bfloat16* step) {
        const __m512i left = load_bits<__m512i>(step), right = load_bits<__m512i>(step + 2 * LANES);
        const __m512i low_byte = _mm512_set1_epi16(0xff);
        store_bits(low, _mm512_packus_epi16(_mm512_and_si512(left, low_byte), _mm512_and_si512(right, low_byte)));
        store_bits(high, _mm512_packus_epi16(_mm512_srli_epi16(left, 8), _mm512_srli_epi16(right, 8)));
    }
};

void choose_high_bytes(const bfloat16* plain, int64_t steps, uint8_t (&chosen)[16]) {
    const int64_t stride = std::max<int64_t>(1, steps / SAMPLED_STEPS);
    int counts[256] = {}, order[256];
    for (int64_t step = 0; step < steps; step += stride)
        for (uint8_t high : Bytes(plain + step * STEP_WEIGHTS).high) counts[high]++;
    std::iota(order, order + 256, 0);
    std::partial_sort(order, order + 16, order + 256, [&](int a, int b) { return counts[a] > counts[b]; });
    std::copy_n(order, 16, chosen);
}

// Which of a step's weights one is.
int place_in_step(int column, int k) { return column % LANES / 4 * 16 + column / LANES * 8 + column % 4 * 2 + k; }

// Reads a leaf pair by pair. Where memory is fast, what a pair takes beside its loads decides how far ahead of them the core sees.
struct Reader {
    const char* pair;
    const char* next;       // the pair that the next of the others is in
    const uint32_t* other;  // which that is
    __m512i high_bytes;     // four times over: of an index, bits above the fourth do not count

    Reader(const char* leaf, int64_t length)
        : pair(leaf + sizeof(CompactHead)),
          other((const uint32_t*)(pair + compact_pairs(length) * PAIR_BYTES)),
          high_bytes(_mm512_broadcast_i32x4(load_bits<__m128i>(leaf))) {
        next = pair + pair_of(*other) * PAIR_BYTES;
    }

    static int64_t pair_of(uint32_t other) { return (other >> 8) / (2 * STEP_WEIGHTS); }

    void read(PairColumns<bfloat16> (&steps)[2]) {
        const __m512i codes = load_bits<__m512i>(pair + 2 * STEP_WEIGHTS);
        __m512i high[2] = {_mm512_permutexvar_epi8(codes, high_bytes),
                           _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), high_bytes)};
        if (__builtin_expect(pair == next, 0)) put_others(high);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const __m512i low = load_bits<__m512i>(pair + i * STEP_WEIGHTS);
            steps[i] = {{(__m512bh)_mm512_unpacklo_epi8(low, high[i]), (__m512bh)_mm512_unpackhi_epi8(low, high[i])}};
        }
        pair += PAIR_BYTES;
    }

    void put_others(__m512i (&high)[2]) {
        const int64_t here = pair_of(*other);
        for (; pair_of(*other) == here; other++) {
            const __mmask64 one = 1ull << (*other >> 8) % STEP_WEIGHTS;
            const __m512i byte = _mm512_set1_epi8((char)*other);
            const bool is_second = (*other >> 8) / STEP_WEIGHTS % 2;
            high[0] = _mm512_mask_mov_epi8(high[0], is_second ? 0 : one, byte);
            high[1] = _mm512_mask_mov_epi8(high[1], is_second ? one : 0, byte);
        }
        next = pair + (pair_of(*other) - here) * PAIR_BYTES;
    }
};

#if defined(__AMX_BF16__)

// Into `plain` if it keeps, and otherwise in turn into two places: the next columns are unpacked while these are multiplied.
template <bool keeps, class Tile>
void multiply_by_registers(Tile& tile, const char* leaf, int64_t length, bfloat16* plain, Ahead ahead) {
    alignas(64) bfloat16 places[2][REGISTER_STEPS * STEP_WEIGHTS];
    Reader reader(leaf, length);
    PairColumns<bfloat16> steps[2];
    tile.clear();
    for (int64_t k = 0; k < length; k += REGISTER_LENGTH<bfloat16>) {
        const int64_t count = std::min(REGISTER_LENGTH<bfloat16>, length - k) / 2;
        bfloat16* columns = keeps ? plain + k * TILE_COLUMNS : places[k / REGISTER_LENGTH<bfloat16> % 2];
        if (keeps) ahead.fetch(count);
        for (int64_t step = 0; step < count; step += 2) {
            if (!keeps)
#pragma GCC unroll 3
                for (int64_t line = 0; line < PAIR_BYTES; line += 64) {
                    __builtin_prefetch(reader.pair + FAR_AHEAD + line, 0, 2);
                    __builtin_prefetch(reader.pair + AHEAD + line, 0, 3);
                }
            reader.read(steps);
            store_unpacked(steps[0], (char*)(columns + step * STEP_WEIGHTS));
            if (step + 1 < count) store_unpacked(steps[1], (char*)(columns + (step + 1) * STEP_WEIGHTS));
        }
        tile.add(k, 2 * count, columns);
    }
}

#else

// What a tile asks the memory for: its own leaf's later pairs, or (keeps) what lies ahead.
template <int rows, bool keeps>
void kernel(const bfloat16* a, int64_t lda, const char* leaf, int64_t length, float* c, bfloat16* plain, Ahead ahead) {
    Rows<bfloat16, rows> pointers(a, lda);
    Reader reader(leaf, length);
    Vec sums[rows][2] = {};
    const auto add = [&](const PairColumns<bfloat16>& columns) __attribute__((always_inline)) {
        if (keeps) {
            __builtin_prefetch(ahead.data, 0, 2);
            ahead.data += ahead.step_bytes;
            store_unpacked(columns, (char*)plain);
            plain += STEP_WEIGHTS;
        }
#pragma GCC unroll 16
        for (int m = 0; m < rows; m++) {
            const RowPair<bfloat16> row = pointers.pair(m, 0);
            sums[m][0] = multiply_add(sums[m][0], row, columns, 0);
            sums[m][1] = multiply_add(sums[m][1], row, columns, 1);
        }
        pointers.advance(2);
    };
    PairColumns<bfloat16> steps[2];
    for (int64_t pair = 0; pair < length / 4; pair++) {
        if (!keeps && rows > FEW_ROWS)
#pragma GCC unroll 3
            for (int64_t line = 0; line < PAIR_BYTES; line += 64) {
                __builtin_prefetch(reader.pair + FAR_AHEAD + line, 0, 2);
                __builtin_prefetch(reader.pair + AHEAD + line, 0, 3);
            }
        reader.read(steps);
        add(steps[0]);
        add(steps[1]);
    }
    if (length % 4) {
        reader.read(steps);
        add(steps[0]);
    }
#pragma GCC unroll 16
    for (int m = 0; m < rows; m++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) store(c + m * TILE_COLUMNS + half * LANES, sums[m][half]);
}

template <bool keeps, int... row>
auto select(int64_t rows, std::integer_sequence<int, row...>) {
    static constexpr decltype(&kernel<1, keeps>) kernels[] = {kernel<row + 1, keeps>...};
    return kernels[rows - 1];
}

#endif

}  // namespace

bool compact_leaf(const bfloat16* plain, int64_t length, char* leaf) {
    const int64_t steps = length / 2;
    uint8_t codes[256];
    auto& chosen = ((CompactHead*)leaf)->high_bytes;
    choose_high_bytes(plain, steps, chosen);
    std::fill_n(codes, 256, NO_CODE);
    for (uint8_t code = 0; code < 16; code++) codes[chosen[code]] = code;

    char* pair = leaf + sizeof(CompactHead);
    uint32_t* others = (uint32_t*)(pair + compact_pairs(length) * PAIR_BYTES);
    int64_t num_others = 0;
    std::fill_n(pair, compact_pairs(length) * PAIR_BYTES, (char)0);
    for (int64_t step = 0; step < steps; step++) {
        const Bytes bytes(plain + step * STEP_WEIGHTS);
        std::copy_n(bytes.low, STEP_WEIGHTS, (uint8_t*)pair + step % 2 * STEP_WEIGHTS);
        uint8_t* target = (uint8_t*)pair + 2 * STEP_WEIGHTS;
        for (int64_t i = 0; i < STEP_WEIGHTS; i++) {
            const uint8_t code = codes[bytes.high[i]];
            target[i] |= (uint8_t)((code & 15) << step % 2 * 4);
            if (code != NO_CODE) continue;
            if (num_others + 1 == max_others(length)) return false;
            others[num_others++] = (uint32_t)(step * STEP_WEIGHTS + i) << 8 | bytes.high[i];
        }
        if (step % 2) pair += PAIR_BYTES;
    }
    others[num_others] = NO_OTHER;
    return true;
}

void unpack_compact_column(const char* leaf, int64_t length, int column, float* target) {
    const char* pairs = leaf + sizeof(CompactHead);
    for (int64_t k = 0; k < length; k++) {
        const int place = place_in_step(column, (int)(k % 2));
        const char* pair = pairs + k / 4 * PAIR_BYTES;
        const uint8_t low = (uint8_t)pair[k / 2 % 2 * STEP_WEIGHTS + place];
        const uint8_t code = (uint8_t)pair[2 * STEP_WEIGHTS + place] >> k / 2 % 2 * 4 & 15;
        target[k] = to_float(bfloat16{(uint16_t)(((const CompactHead*)leaf)->high_bytes[code] << 8 | low)});
    }
    const uint32_t* others = (const uint32_t*)(pairs + compact_pairs(length) * PAIR_BYTES);
    for (; *others != NO_OTHER; others++) {
        const int64_t step = (*others >> 8) / STEP_WEIGHTS;
        for (int k = 0; k < 2; k++) {
            if ((*others >> 8) % STEP_WEIGHTS != place_in_step(column, k)) continue;
            const char* pair = pairs + step / 2 * PAIR_BYTES;
            const uint8_t low = (uint8_t)pair[step % 2 * STEP_WEIGHTS + place_in_step(column, k)];
            target[2 * step + k] = to_float(bfloat16{(uint16_t)((*others & 0xff) << 8 | low)});
        }
    }
}

void multiply_compact(int64_t rows, const bfloat16* a, int64_t lda, const char* leaf, int64_t length, float* c, bfloat16* plain,
                      Ahead ahead) {
    if (ahead.data == nullptr) ahead = {leaf, 0};
#if defined(__AMX_BF16__)
    with_register_tile(rows, a, lda, [&](auto& tile) {
        plain != nullptr ? multiply_by_registers<true>(tile, leaf, length, plain, ahead)
                         : multiply_by_registers<false>(tile, leaf, length, nullptr, ahead);
        tile.store(c, TILE_COLUMNS);
    });
#else
    constexpr std::make_integer_sequence<int, TILE_ROWS<bfloat16>> counts;
    const auto kernel = plain != nullptr ? select<true>(rows, counts) : select<false>(rows, counts);
    kernel(a, lda, leaf, length, c, plain, ahead);
#endif
}

#endif

}  // namespace squadron
