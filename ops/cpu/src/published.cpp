// multiply_runs, and how published weights are packed.
#include "published.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "api.h"
#include "threads.h"
#include "tile_registers.h"

namespace squadron {
namespace {

constexpr int64_t AHEAD = 4096;  // bytes, as in quantized.cpp

// Of words whose highest byte is a float8 (e4m3): its exponent and fraction moved to where float32 has them, which makes of the
// least exponent one of numbers like the others; it stands for multiples of 2^-9.
inline Vec float8_numbers(Words words) {
    constexpr uint32_t MOVED_EXPONENT = 120u << 23;
    const Words magnitude = words >> 4 & 0x07f00000u;
    const Vec moved = (Vec)(magnitude + MOVED_EXPONENT);
    const Words is_least = (Words)(magnitude < 0x00800000u);
    const Vec more = (Vec)((Words)(moved - broadcast(1.0f / 64)) & is_least);
    return (Vec)((Words)(moved + more) | (words & 0x80000000u));
}

// Four bits of each word, from one of the lowest 17 on, as the last ones of a float whose exponent gives them their value: so they
// are 2^(23 - bit) too much. That is two instructions; to shift, to mask and to convert are three, of which fewer run at once.
constexpr uint32_t power_at(int bit) { return (uint32_t)(127 + 23 - bit) << 23; }
inline Vec nibbles_at(Words words, int bit) { return (Vec)((words & 15u << bit) | power_at(bit)); }

// A run's codes as what rows are multiplied with.
template <Codes codes, class T>
struct Decoder {
    Vec zeros[2];
    Vec nibble_zeros[2][4];  // of ZERO4, for each place: with what nibbles_at gives too much
    const char* data;

    explicit Decoder(const char* run) : data(run + HEADER_BYTES) {
        const int16_t* points = (const int16_t*)(run + TILE_COLUMNS * sizeof(float));
        for (int half = 0; half < 2; half++)
            zeros[half] = to_floats(load_bits<Shorts>(points + half * LANES));
        for (int place = 0; place < (codes == ZERO4 ? 4 : 0); place++)
            for (int which = 0; which < 2; which++)
                nibble_zeros[which][place] = zeros[place % 2] + (Vec)broadcast_word(power_at(4 * (place + which)));
    }
    void columns_at(int64_t step, PairColumns<T>& columns) const {
        if (codes != UNPACKED && codes != ZERO4) {
            const char* bytes = data + step * VECTOR_BYTES;
            columns.first[0] = of_bytes(spread_bytes<0, 0>(bytes), 0);
            columns.first[1] = of_bytes(spread_bytes<1, 0>(bytes), 1);
            columns.second[0] = of_bytes(spread_bytes<0, 1>(bytes), 0);
            columns.second[1] = of_bytes(spread_bytes<1, 1>(bytes), 1);
            return;
        }
        for (int half = 0; half < 2; half++) {
            if (codes == UNPACKED) {
                const char* vectors = data + (step * 4 + half * 2) * VECTOR_BYTES;
                columns.first[half] = load_bits<Vec>(vectors);
                columns.second[half] = load_bits<Vec>(vectors + VECTOR_BYTES);
            } else {
                const Words words = load_bits<Words>(data + step / 2 * VECTOR_BYTES);
                const int place = (int)(step % 2) * 2 + half;
                columns.first[half] = nibbles_at(words, 4 * place) - nibble_zeros[0][place];
                columns.second[half] = nibbles_at(words >> 12, 4 * place + 4) - nibble_zeros[1][place];
            }
        }
    }
    Vec of_bytes(Words bytes, int half) const {
        if (codes == ZERO8) return to_floats((Ints)(bytes >> 24)) - zeros[half];
        if (codes == SYM8) return to_floats((Ints)bytes >> 24);
        return float8_numbers(bytes);
    }
};

#if defined(__AVX512BF16__)

// What the bits of a float8 (e4m3) stand for; without a sign.
constexpr float float8_value(int bits) {
    const int exponent = bits >> 3, fraction = bits & 7;
    float value = (exponent == 0 ? (float)fraction : (float)(8 + fraction)) / 8.0f;
    for (int i = exponent == 0 ? 1 : exponent; i < 7; i++) value /= 2.0f;
    for (int i = 7; i < exponent; i++) value *= 2.0f;
    return value;
}

constexpr uint16_t bfloat16_bits(float value) {
    if (value == 0.0f) return 0;
    const uint16_t sign = value < 0.0f ? 0x8000 : 0;
    float magnitude = value < 0.0f ? -value : value;
    int exponent = 127;
    for (; magnitude >= 2.0f; exponent++) magnitude /= 2.0f;
    for (; magnitude < 1.0f; exponent--) magnitude *= 2.0f;
    return (uint16_t)(sign | exponent << 7 | (int)((magnitude - 1.0f) * 128.0f));
}

// -16 to 15 by their five bits of two's complement.
struct SmallIntegers {
    alignas(64) uint16_t bits[32] = {};
    constexpr SmallIntegers() {
        for (int i = 0; i < 32; i++) bits[i] = bfloat16_bits((float)(i < 16 ? i : i - 32));
    }
};
constexpr SmallIntegers SMALL_INTEGERS;

// By seven bits, the low bytes and the high ones: float8 without a sign.
struct Float8Magnitudes {
    alignas(64) uint8_t low[128] = {}, high[128] = {};
    constexpr Float8Magnitudes() {
        for (int i = 0; i < 128; i++) {
            const uint16_t bits = bfloat16_bits(float8_value(i));
            low[i] = (uint8_t)bits, high[i] = (uint8_t)(bits >> 8);
        }
    }
};
constexpr Float8Magnitudes FLOAT8_MAGNITUDES;

template <Codes codes>
struct Decoder<codes, bfloat16> {
    __m512i zeros[2];
    const char* data;

    explicit Decoder(const char* run) : data(run + HEADER_BYTES) {
        if (codes != ZERO4 && codes != ZERO8) return;
        const char* points = run + TILE_COLUMNS * sizeof(float);
        for (int half = 0; half < 2; half++) {
            const __m512i words = _mm512_cvtepu16_epi32(load_bits<__m256i>(points + half * LANES * 2));
            const __m512i pairs = _mm512_or_si512(words, _mm512_slli_epi32(words, 16));
            zeros[half] = codes == ZERO8 ? pairs : _mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 8));
        }
    }
    void columns_at(int64_t step, PairColumns<bfloat16>& columns) const {
        if (codes == UNPACKED)
            for (int half = 0; half < 2; half++)
                columns.halves[half] = load_bits<__m512bh>(data + (step * 2 + half) * VECTOR_BYTES);
        else if (codes == ZERO4)
            of_nibbles(step, columns);
        else if (codes == ZERO8)
            of_differences(step, columns);
        else
            of_magnitudes(step, columns);
    }
    // Both steps of a word's bytes are masked and less their zero points at once: the low bytes are those of even steps.
    void of_nibbles(int64_t step, PairColumns<bfloat16>& columns) const {
        const __m512i words = load_bits<__m512i>(data + step / 2 * VECTOR_BYTES), mask = _mm512_set1_epi8(15);
        const __m512i table = load_bits<__m512i>(SMALL_INTEGERS.bits);
        for (int half = 0; half < 2; half++) {
            const __m512i nibbles = _mm512_and_si512(half == 0 ? words : _mm512_srli_epi16(words, 4), mask);
            const __m512i values = _mm512_sub_epi8(nibbles, zeros[half]);
            columns.halves[half] = (__m512bh)_mm512_permutexvar_epi16(step % 2 == 0 ? values : _mm512_srli_epi16(values, 8), table);
        }
    }
    // Nine bits, by way of float32, of which the upper half is all there is.
    void of_differences(int64_t step, PairColumns<bfloat16>& columns) const {
        const __m512i bytes = load_bits<__m512i>(data + step * VECTOR_BYTES), none = _mm512_setzero_si512();
        for (int half = 0; half < 2; half++) {
            const __m512i pairs = half == 0 ? _mm512_unpacklo_epi8(bytes, none) : _mm512_unpackhi_epi8(bytes, none);
            const __m512i values = _mm512_sub_epi16(pairs, zeros[half]);
            const __m512i first = _mm512_srai_epi32(_mm512_slli_epi32(values, 16), 16), second = _mm512_srai_epi32(values, 16);
            const __m512i low = _mm512_srli_epi32((__m512i)_mm512_cvtepi32_ps(first), 16);
            const __m512i high = (__m512i)_mm512_cvtepi32_ps(second);
            columns.halves[half] = (__m512bh)_mm512_mask_blend_epi16(0xaaaaaaaau, low, high);
        }
    }
    void of_magnitudes(int64_t step, PairColumns<bfloat16>& columns) const {
        const __m512i values = load_bits<__m512i>(data + step * VECTOR_BYTES);
        constexpr int A_OR_B_AND_C = 0xf8;
        const __m512i sign = _mm512_set1_epi8((char)0x80);
        const __m512i index = codes == SYM8 ? _mm512_abs_epi8(values) : values;  // its lower seven bits count
        const auto& low_table = codes == SYM8 ? MAGNITUDES.low : FLOAT8_MAGNITUDES.low;
        const auto& high_table = codes == SYM8 ? MAGNITUDES.high : FLOAT8_MAGNITUDES.high;
        const __m512i low = Magnitudes::find(low_table, index), high = Magnitudes::find(high_table, index);
        __m512i with_sign = _mm512_ternarylogic_epi32(high, values, sign, A_OR_B_AND_C);
        if (codes == SYM8)  // -128, whose magnitude has no place in the table
            with_sign = _mm512_mask_mov_epi8(with_sign, _mm512_cmpeq_epi8_mask(values, sign), _mm512_set1_epi8((char)0xc3));
        columns.halves[0] = (__m512bh)_mm512_unpacklo_epi8(low, with_sign);
        columns.halves[1] = (__m512bh)_mm512_unpackhi_epi8(low, with_sign);
    }
};

#endif

template <Codes codes, class T>
constexpr int64_t bytes_of(int64_t length) {
    return codes == UNPACKED ? unpacked_run_bytes<T>(length) : run_bytes(codes, length);
}

// sums += scale * chain for `count` neighbouring runs of one length: their chains run side by side and are added in order.
// Leaves `a` at the end of them. If it keeps (one run), kept <- the run with its codes UNPACKED.
template <Codes codes, int count, bool keeps, class T, int rows>
inline __attribute__((always_inline)) void multiply_run(Rows<T, rows>& a, const char* run, int64_t length, Vec (&sums)[rows][2],
                                                        Ahead& ahead, char* kept) {
    constexpr bool IS_READY = codes == UNPACKED || keeps;  // fetched by the tiles of the panel before
    constexpr int CACHE_LEVEL = IS_READY ? 2 : 3;
    const int64_t bytes = bytes_of<codes, T>(length);
    Ahead fetched = IS_READY ? ahead : Ahead{run + AHEAD, VECTOR_BYTES};
    const Decoder<codes, T> decoders[2] = {Decoder<codes, T>(run), Decoder<codes, T>(run + (count - 1) * bytes)};
    if (keeps) std::memcpy(kept, run, HEADER_BYTES);
    Vec chains[count][rows][2] = {};
    for (int64_t step = 0; step < length / 2; step += 2) {
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
#pragma GCC unroll 2
            for (int i = 0; i < count; i++) {
                PairColumns<T> columns;
                decoders[i].columns_at(step + odd, columns);
                if (keeps) store_unpacked(columns, kept + HEADER_BYTES + (step + odd) * (int64_t)sizeof columns);
                if (IS_READY || codes != ZERO4 || odd == 0) {
                    __builtin_prefetch(fetched.data, 0, CACHE_LEVEL);
                    fetched.data += fetched.step_bytes;
                }
#pragma GCC unroll 16
                for (int m = 0; m < rows; m++) {
                    const RowPair<T> row = a.pair(m, i * length);
                    chains[i][m][0] = multiply_add(chains[i][m][0], row, columns, 0);
                    chains[i][m][1] = multiply_add(chains[i][m][1], row, columns, 1);
                }
            }
            a.advance(2);
        }
    }
    a.advance((count - 1) * length);
    ahead.data += count * length / 2 * ahead.step_bytes;
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const Vec scale = load((const float*)(run + i * bytes) + half * LANES);
#pragma GCC unroll 16
            for (int m = 0; m < rows; m++) sums[m][half] = fmadd(chains[i][m][half], scale, sums[m][half]);
        }
}

// Two runs at once where few rows would leave the multipliers waiting for a chain's last sum; but not where a pair is one
// instruction: memory gives more to one stream than a chain's latency costs.
template <class T, Codes codes, int rows, bool keeps = false>
void kernel(const T* a, int64_t lda, const char* run, const int32_t* lengths, int64_t count, float* c, char* kept, Ahead ahead) {
    constexpr int AT_ONCE = keeps || rows > 3 || IS_ONE_PRODUCT<T> ? 1 : 2;
    Rows<T, rows> pointers(a, lda);
    Vec sums[rows][2] = {};
    for (int64_t i = 0; i < count;) {
        const int64_t length = lengths[i], bytes = bytes_of<codes, T>(length);
        if constexpr (AT_ONCE == 2)
            if (i + 1 < count && lengths[i + 1] == length) {
                multiply_run<codes, 2, keeps>(pointers, run, length, sums, ahead, kept);
                i += 2, run += 2 * bytes;
                continue;
            }
        multiply_run<codes, 1, keeps>(pointers, run, length, sums, ahead, kept);
        i++, run += bytes;
        if (keeps) kept += unpacked_run_bytes<T>(length);
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
void by_vectors(Codes codes, int64_t rows, const T* a, int64_t lda, const char* data, const int32_t* lengths, int64_t count,
                float* c, char* kept, Ahead ahead) {
    constexpr std::make_integer_sequence<int, QUANTIZED_ROWS<T>> counts;
    constexpr std::make_integer_sequence<int, QUANTIZED_ROWS<T> + 1 - FEWEST_KEPT<T>> keeping;
    const auto kernel = kept != nullptr   ? codes == ZERO4   ? select_keeping<T, ZERO4>(rows, keeping)
                                            : codes == SYM8  ? select_keeping<T, SYM8>(rows, keeping)
                                            : codes == ZERO8 ? select_keeping<T, ZERO8>(rows, keeping)
                                                             : select_keeping<T, FLOAT8>(rows, keeping)
                        : codes == ZERO4  ? select<T, ZERO4>(rows, counts)
                        : codes == SYM8   ? select<T, SYM8>(rows, counts)
                        : codes == ZERO8  ? select<T, ZERO8>(rows, counts)
                        : codes == FLOAT8 ? select<T, FLOAT8>(rows, counts)
                                          : select<T, UNPACKED>(rows, counts);
    kernel(a, lda, data, lengths, count, c, kept, ahead);
}

#if defined(__AMX_BF16__)

// A run's columns are unpacked REGISTER_LENGTH at a time.
template <Codes codes>
void multiply_by_registers(int64_t rows, const bfloat16* a, int64_t lda, const char* run, const int32_t* lengths, int64_t count,
                           float* c, char* kept, Ahead ahead) {
    constexpr bool IS_READY = codes == UNPACKED;
    constexpr int64_t LENGTH = REGISTER_LENGTH<bfloat16>;
    alignas(64) char places[2][REGISTER_STEPS * COLUMNS_BYTES];
    std::fill_n(c, rows * TILE_COLUMNS, 0.0f);
    with_register_tile(rows, a, lda, [&](auto& tile) {
        for (int64_t i = 0, begin = 0; i < count; begin += lengths[i++]) {
            const Decoder<codes, bfloat16> decoder(run);
            tile.clear();
            for (int64_t k = 0; k < lengths[i]; k += LENGTH) {
                const int64_t part = std::min(LENGTH, lengths[i] - k);
                const char* columns = run + HEADER_BYTES + k / 2 * COLUMNS_BYTES;
                if (IS_READY || kept != nullptr) ahead.fetch(part / 2);
                if (!IS_READY) {
                    if (kept == nullptr)
                        Ahead{run + run_bytes(codes, k) + AHEAD, VECTOR_BYTES}.fetch(part / (codes == ZERO4 ? QUAD : 2));
                    char* target = kept != nullptr ? kept + HEADER_BYTES + k / 2 * COLUMNS_BYTES : places[k / LENGTH % 2];
                    for (int64_t step = 0; step < part / 2; step++) {
                        PairColumns<bfloat16> pair;
                        decoder.columns_at(k / 2 + step, pair);
                        store_unpacked(pair, target + step * COLUMNS_BYTES);
                    }
                    columns = target;
                }
                tile.add(begin + k, part, columns);
            }
            tile.add_scaled_to(c, (const float*)run);
            if (kept != nullptr) {
                std::memcpy(kept, run, HEADER_BYTES);
                kept += unpacked_run_bytes<bfloat16>(lengths[i]);
            }
            run += bytes_of<codes, bfloat16>(lengths[i]);
        }
    });
}

#endif

// One panel: of each of its columns, a run after the other.
void pack_panel(const PackedWeight& weight, int64_t panel, const uint8_t* codes, const int16_t* zeros, const float* scales,
                int64_t num_groups, const int32_t* groups) {
    const Codes kind = (Codes)weight.codes;
    const bool is_for_digits = in_digits(kind, weight.dtype);
    char* data = (char*)weight.data + panel * weight.panel_bytes();
    std::fill_n(data, weight.panel_bytes(), (char)0);
    for (int64_t leaf = 0; leaf < weight.leaves; leaf++) {
        char* run = data + weight.leaf_offset(leaf);
        int64_t begin = leaf * weight.leaf_length();
        for (int64_t i = weight.leaf_runs[leaf]; i < weight.leaf_runs[leaf + 1]; i++) {
            const int64_t length = weight.runs[i];
            for (int column = 0; column < TILE_COLUMNS; column++) {
                const int64_t row = weight.source_row(panel, column);
                if (row < 0) continue;
                const int multiple = is_for_digits ? times(kind, column) : 1;
                ((float*)run)[column] = scales[row * num_groups + groups[i]] / (float)multiple;
                if (zeros != nullptr)
                    ((int16_t*)(run + TILE_COLUMNS * sizeof(float)))[column] = (int16_t)(zeros[row * num_groups + groups[i]] * multiple);
                for (int64_t k = 0; k < length; k++) {
                    const Place place = is_for_digits ? digit_place_of(kind, k, column) : place_of(kind, k, column);
                    const uint8_t code = codes[row * weight.in_features + begin + k];
                    run[HEADER_BYTES + place.byte] |= (char)((kind == SYM8 && !is_for_digits ? code ^ 128 : code) << place.shift);
                }
            }
            run += run_bytes(kind, length);
            begin += length;
        }
    }
}

constexpr int GATHERED_ROWS = 4;  // at once, so that the order is looked at once for them

template <int rows, class T>
void gather(const T* source, int64_t in, const int32_t* order, T* target, int64_t width) {
    for (int64_t i = 0; i < width; i++) {
        const int32_t from = order[i];
        for (int row = 0; row < rows; row++) target[row * width + i] = from < 0 ? T{} : source[row * in + from];
    }
}

}  // namespace

template <class T>
void multiply_runs(Codes codes, int64_t rows, const T* a, int64_t lda, const char* data, const int32_t* lengths, int64_t count,
                   float* c, char* kept, Ahead ahead) {
    if (ahead.data == nullptr) ahead = {data, 0};
#if defined(__AMX_BF16__)
    if constexpr (HAS_TILE_REGISTERS<T>) {
        const auto multiply = codes == ZERO4    ? multiply_by_registers<ZERO4>
                              : codes == SYM8   ? multiply_by_registers<SYM8>
                              : codes == ZERO8  ? multiply_by_registers<ZERO8>
                              : codes == FLOAT8 ? multiply_by_registers<FLOAT8>
                                                : multiply_by_registers<UNPACKED>;
        multiply(rows, a, lda, data, lengths, count, c, kept, ahead);
    } else
#endif
        by_vectors<T>(codes, rows, a, lda, data, lengths, count, c, kept, ahead);
}

template void multiply_runs(Codes, int64_t, const float*, int64_t, const char*, const int32_t*, int64_t, float*, char*, Ahead);
template void multiply_runs(Codes, int64_t, const bfloat16*, int64_t, const char*, const int32_t*, int64_t, float*, char*, Ahead);

}  // namespace squadron

using namespace squadron;

SQUADRON_API void squadron_published_offsets(const PackedWeight* weight, int64_t* offsets) {
    int64_t offset = 0;
    for (int64_t leaf = 0; leaf < weight->leaves; leaf++) {
        offsets[leaf] = offset;
        for (int64_t i = weight->leaf_runs[leaf]; i < weight->leaf_runs[leaf + 1]; i++)
            offset += run_bytes((Codes)weight->codes, weight->runs[i]);
    }
    offsets[weight->leaves] = offset;
}

SQUADRON_API void squadron_pack_published(const PackedWeight* weight, const uint8_t* codes, const int16_t* zeros,
                                          const float* scales, int64_t num_groups, const int32_t* groups, int32_t threads) {
    for_each(weight->panels(), 1, threads, [=](int64_t panel) {
        pack_panel(*weight, panel, codes, zeros, scales, num_groups, groups);
    });
}

SQUADRON_API void squadron_gather(const void* x, const int32_t* order, void* out, int64_t rows, int64_t in, int64_t width,
                                  int32_t dtype, int32_t threads) {
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        for_each((rows + GATHERED_ROWS - 1) / GATHERED_ROWS, 1, threads, [=](int64_t block) {
            const T* source = (const T*)x + block * GATHERED_ROWS * in;
            T* target = (T*)out + block * GATHERED_ROWS * width;
            if (rows - block * GATHERED_ROWS >= GATHERED_ROWS)
                gather<GATHERED_ROWS>(source, in, order, target, width);
            else
                for (int64_t row = block * GATHERED_ROWS; row < rows; row++, source += in, target += width)
                    gather<1>(source, in, order, target, width);
        });
    });
}
