// Products by tile registers (Intel's AMX), where a processor has them: 16 rows by 16 columns in one instruction.
//
// An instruction takes 64 bytes of each row and column: 32 bfloat16, or 64 bytes without a sign times bytes with one. Of
// bfloat16, the first numbers of all pairs are one chain of multiply-adds and the second ones another; their sum is added to the
// element. So its bits depend on its row and column alone. k that are missing are zeros, which add nothing; rows that are missing
// may be anything, since nobody reads their sums.
// Subnormal numbers count as zeros, as in the vectors' products of bfloat16.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "tile.h"

namespace squadron {

#if defined(__AMX_BF16__)

constexpr int64_t REGISTER_BYTES = 64;  // of a row of a tile register
constexpr int64_t REGISTER_STEPS = REGISTER_BYTES / 4;
template <class T>
constexpr int64_t REGISTER_LENGTH = REGISTER_BYTES / sizeof(T);  // k
constexpr int64_t COLUMNS_BYTES = TILE_COLUMNS * 4;              // of a step

// While one exists, this thread's tile registers are 16 rows of 64 bytes each.
class TileRegisters {
   public:
    TileRegisters() {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shapes;
        for (int i = 0; i < 8; i++) shapes.row_bytes[i] = REGISTER_BYTES, shapes.rows[i] = REGISTER_ROWS;
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~TileRegisters() { asm volatile("tilerelease"); }
    TileRegisters(const TileRegisters&) = delete;
};

// The address sanitizer does not see what instructions by name read and write: this reads the same for it.
inline void show_rows([[maybe_unused]] const void* rows, [[maybe_unused]] int64_t row_bytes) {
#if defined(__SANITIZE_ADDRESS__)
    for (int64_t row = 0; row < REGISTER_ROWS; row++) {
        const __m512i bytes = load_bits<__m512i>((const char*)rows + row * row_bytes);
        asm volatile("" ::"v"(bytes));
    }
#endif
}

// As instructions, and not as the compiler's functions, which do not tell it that they read and write memory.
template <int number>
inline void load_register(const void* source, int64_t row_bytes) {
    show_rows(source, row_bytes);
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(source), "r"(row_bytes), "i"(number) : "memory");
}

template <int number>
inline void store_register(void* target, int64_t row_bytes) {
    show_rows(target, row_bytes);
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(target), "r"(row_bytes), "i"(number) : "memory");
}

template <int number>
inline void clear_register() {
    asm volatile("tilezero %%tmm%c0" ::"i"(number));
}

// sums += rows x columns
template <class T, int sums, int rows, int columns>
inline void multiply_registers() {
    if constexpr (std::is_same_v<T, bfloat16>)
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(rows), "i"(columns));
    else
        asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(rows), "i"(columns));
}

// 1 to 16 rows: read as they are if they are whole, and from a copy otherwise.
template <class T>
class RegisterRows {
   public:
    RegisterRows(int64_t rows, const T* a, int64_t lda) : a(a), lda(lda), rows(rows) {}

    template <int number>
    void load(int64_t k, int64_t length) {
        if (rows == REGISTER_ROWS && length == REGISTER_LENGTH<T>) return load_register<number>(a + k, lda * (int64_t)sizeof(T));
        const __mmask64 mask = ~0ull >> (REGISTER_LENGTH<T> - length) * sizeof(T);
        for (int64_t row = 0; row < rows; row++)
            _mm512_store_si512(copy + row * REGISTER_BYTES, _mm512_maskz_loadu_epi8(mask, a + row * lda + k));
        load_register<number>(copy, REGISTER_BYTES);
    }

    const T* const a;
    const int64_t lda, rows;

   private:
    alignas(64) char copy[REGISTER_ROWS * REGISTER_BYTES];
};

// A tile (tile.h) of up to 32 rows of T. The sums stay in registers, 0 to 3; 4 and 5 are the rows', 6 and 7 the columns'.
template <class T, bool is_high>
class RegisterTile {
   public:
    RegisterTile(int64_t rows, const T* a, int64_t lda)
        : upper(is_high ? REGISTER_ROWS : rows, a, lda),
          lower(is_high ? rows - REGISTER_ROWS : rows, a + (is_high ? REGISTER_ROWS * lda : 0), lda) {}

    void clear() {
        clear_register<0>(), clear_register<1>();
        if (is_high) clear_register<2>(), clear_register<3>();
    }

    // Inputs k to k + length (REGISTER_LENGTH at most) by what a panel has for them: [length / STEP][TILE_COLUMNS][STEP].
    void add(int64_t k, int64_t length, const void* columns) {
        if (length < REGISTER_LENGTH<T>) columns = with_zeros(columns, length / STEP<T>);
        add_columns(k, length, columns, (const char*)columns + COLUMNS_BYTES / 2, COLUMNS_BYTES);
    }

    // The same where either half of the columns is somewhere else, REGISTER_STEPS steps that are `step_bytes` apart.
    void add_columns(int64_t k, int64_t length, const void* left, const void* right, int64_t step_bytes) {
        load_register<6>(left, step_bytes);
        upper.template load<4>(k, length);
        multiply_registers<T, 0, 4, 6>();
        load_register<7>(right, step_bytes);
        multiply_registers<T, 1, 4, 7>();
        if (!is_high) return;
        lower.template load<5>(k, length);
        multiply_registers<T, 2, 5, 6>();
        multiply_registers<T, 3, 5, 7>();
    }

    // sums <- c [rows, TILE_COLUMNS] (row stride ldc)
    void load(const float* c, int64_t ldc) const {
        load_sums<0>(c, ldc, upper.rows);
        if (is_high) load_sums<2>(c + REGISTER_ROWS * ldc, ldc, lower.rows);
    }

    // c <- sums, which are integers if T is
    void store(float* c, int64_t ldc) const {
        store_sums<0>(c, ldc, upper.rows);
        if (is_high) store_sums<2>(c + REGISTER_ROWS * ldc, ldc, lower.rows);
    }

    // c [rows, TILE_COLUMNS] += sums x the columns' scales, fused.
    template <class Scale>
    void add_scaled_to(float* c, const Scale* scales) const {
        alignas(64) float sums[(is_high ? 2 : 1) * REGISTER_ROWS * TILE_COLUMNS];
        const int64_t vectors = 2 * (upper.rows + (is_high ? lower.rows : 0));
        const Vec scale[2] = {squadron::load(scales), squadron::load(scales + LANES)};
        store_whole<0>(sums, TILE_COLUMNS);
        if (is_high) store_whole<2>(sums + REGISTER_ROWS * TILE_COLUMNS, TILE_COLUMNS);
        for (int64_t i = 0; i < vectors; i++)
            squadron::store(c + i * LANES, fmadd(squadron::load(sums + i * LANES), scale[i % 2], squadron::load(c + i * LANES)));
    }

   private:
    // Of 1 to 16 rows, by way of whole ones where some are missing.
    template <int number>
    static void load_sums(const float* c, int64_t ldc, int64_t rows) {
        alignas(64) float whole[REGISTER_ROWS * TILE_COLUMNS];
        if (rows < REGISTER_ROWS) {
            for (int64_t row = 0; row < rows; row++)
                for (int half = 0; half < TILE_COLUMNS; half += LANES)
                    squadron::store(whole + row * TILE_COLUMNS + half, squadron::load(c + row * ldc + half));
            c = whole, ldc = TILE_COLUMNS;
        }
        load_register<number>(c, 4 * ldc), load_register<number + 1>(c + LANES, 4 * ldc);
    }

    template <int number>
    static void store_whole(float* c, int64_t ldc) {
        store_register<number>(c, 4 * ldc), store_register<number + 1>(c + LANES, 4 * ldc);
    }

    template <int number>
    static void store_sums(float* c, int64_t ldc, int64_t rows) {
        if (rows == REGISTER_ROWS) return store_whole<number>(c, ldc);
        alignas(64) float whole[REGISTER_ROWS * TILE_COLUMNS];
        store_whole<number>(whole, TILE_COLUMNS);
        for (int64_t row = 0; row < rows; row++)
            for (int half = 0; half < TILE_COLUMNS; half += LANES)
                squadron::store(c + row * ldc + half, squadron::load(whole + row * TILE_COLUMNS + half));
    }

    const char* with_zeros(const void* columns, int64_t steps) {
        for (int64_t i = 0; i < REGISTER_STEPS * COLUMNS_BYTES; i += 64)
            store_bits(whole + i, i < steps * COLUMNS_BYTES ? load_bits<Words>((const char*)columns + i) : Words{});
        return whole;
    }

    RegisterRows<T> upper, lower;
    alignas(64) char whole[REGISTER_STEPS * COLUMNS_BYTES];
};

// function(tile) with the tile of these rows.
template <class T, class Function>
inline void with_register_tile(int64_t rows, const T* a, int64_t lda, Function function) {
    if (rows > REGISTER_ROWS) {
        RegisterTile<T, true> tile(rows, a, lda);
        function(tile);
    } else {
        RegisterTile<T, false> tile(rows, a, lda);
        function(tile);
    }
}

#else

struct TileRegisters {
    TileRegisters() {}  // so that compilers do not call one unused
};

#endif

}  // namespace squadron
