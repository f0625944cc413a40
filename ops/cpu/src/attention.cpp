// Causal attention over the paged cache, for prefill and decode rows alike.
//
// A row's keys are taken in tiles of KEYS and in splits of SPLIT, counted from position 0. Within a split the softmax runs
// on from tile to tile; a finished split is folded into those before it, in order. That is the whole arithmetic of a row: it
// knows neither the rows computed with it, nor how splits were given to threads.
#include <algorithm>
#include <memory>
#include <vector>

#include "api.h"
#include "dtype.h"
#include "kv_cache.h"
#include "parts.h"
#include "softmax.h"
#include "threads.h"
#include "tile.h"

namespace squadron {
namespace {

constexpr int SPLIT = 512;          // keys; a multiple of KEYS
constexpr int64_t MAX_ROWS = 256;   // query rows (tokens x heads of a group) that share a tile
constexpr int64_t MAX_TOKENS = 64;  // of an item, lest much of its work be masked

struct Arguments {
    const void *query, *key_cache, *value_cache;
    void* out;
    const int32_t *query_starts, *context_lens, *block_tables;
    int64_t rows, sequences, table_width, num_blocks, heads, kv_heads, head_dim, block_size;
    float scale;

    int64_t group() const { return heads / kv_heads; }
    int64_t query_len(int64_t sequence) const { return query_starts[sequence + 1] - query_starts[sequence]; }
    int64_t first_position(int64_t sequence) const { return context_lens[sequence] - query_len(sequence); }
};

// Some consecutive query tokens of a sequence, with the query heads of one key-value head, over some of its splits.
struct Item {
    int64_t sequence, kv_head, first_token, tokens, first_split, last_split;
    float* partial;  // where a lone split's rows go; null: the item has all splits and finishes its rows

    // Roughly: products of a row with a key.
    int64_t cost() const { return tokens * (last_split - first_split); }
};

using Items = std::shared_ptr<std::vector<Item>>;  // jobs that are noted down hold them

int64_t splits_up_to(int64_t position) { return position / SPLIT + 1; }

template <class T>
class Worker {
   public:
    explicit Worker(const Arguments& arguments) : a(arguments), rows_limit(std::max(MAX_ROWS, a.group())), scale(a.scale * 1.44269504f) {
        const int64_t state = Weighted::size(rows_limit, a.head_dim);
        float* memory = scratch(2 * state + (LANES + rows_limit) * a.head_dim + 2 * TILE_ROWS<T> * KEYS + 5 * 16);
        whole = Weighted::at(take(memory, state), rows_limit, a.head_dim);
        part = Weighted::at(take(memory, state), rows_limit, a.head_dim);
        cut = (T*)take(memory, LANES * a.head_dim);
        queries = (RowOf<T>*)take(memory, rows_limit * a.head_dim);
        products = take(memory, TILE_ROWS<T> * KEYS);
        weights = (RowOf<T>*)take(memory, TILE_ROWS<T> * KEYS);
    }

    void run(const Item& item) {
        const int64_t rows = item.tokens * a.group();
        load_queries(item);
        if (item.partial != nullptr) {
            part = Weighted::at(item.partial, rows, a.head_dim);
            attend_split(item, item.first_split);
            return;
        }
        whole.clear(rows);
        for (int64_t split = item.first_split; split < item.last_split; split++) {
            attend_split(item, split);
            fold(whole, part, first_row(item, split * SPLIT), rows);
        }
        write(item, whole);
    }

    // The rows of an item from the partials of its splits, [splits] of them one after the other from item.partial on.
    void run_folding(const Item& item) {
        const int64_t rows = item.tokens * a.group(), size = Weighted::size(rows, a.head_dim);
        whole.clear(rows);
        for (int64_t split = item.first_split; split < item.last_split; split++) {
            const Weighted split_part = Weighted::at(item.partial + split * size, rows, a.head_dim);
            fold(whole, split_part, first_row(item, split * SPLIT), rows);
        }
        write(item, whole);
    }

   private:
    static float* take(float*& memory, int64_t floats) {
        float* taken = memory;
        memory += (floats + 15) / 16 * 16;
        return taken;
    }

    int64_t position(const Item& item, int64_t row) const {
        return a.first_position(item.sequence) + item.first_token + row / a.group();
    }

    // The first row of the item that sees a key at this position.
    int64_t first_row(const Item& item, int64_t key) const {
        return std::clamp<int64_t>(key - position(item, 0), 0, item.tokens) * a.group();
    }

    // Row token * group + g is query head kv_head * group + g of that token.
    template <class Function>
    void for_each_token(const Item& item, Function function) const {
        for (int64_t token = 0; token < item.tokens; token++) {
            const int64_t row = a.query_starts[item.sequence] + item.first_token + token;
            function(token, (row * a.heads + item.kv_head * a.group()) * a.head_dim);
        }
    }

    void load_queries(const Item& item) {
        const int64_t size = a.group() * a.head_dim;
        for_each_token(item, [&](int64_t token, int64_t offset) {
            for (int64_t i = 0; i < size; i += LANES)
                store_row(queries + token * size + i, load((const T*)a.query + offset + i), T{});
        });
    }

    // All rows of the item over one split's keys, into `part`.
    void attend_split(const Item& item, int64_t split) {
        const HeadCache<T> cache{(const T*)a.key_cache, (const T*)a.value_cache,
                                 a.block_tables + item.sequence * a.table_width,
                                 a.kv_heads, item.kv_head, a.block_size, a.head_dim};
        const int64_t rows = item.tokens * a.group(), context = a.context_lens[item.sequence];
        const int64_t last = std::min(position(item, rows - 1) + 1, item.last_split * SPLIT), end = std::min(last, (split + 1) * SPLIT);
        const auto tile_at = [&](int64_t key) { return KeyValueTile<T>(cache, key, std::min(key + KEYS, context)); };
        part.clear(rows);
        for (int64_t key = split * SPLIT; key < end; key += KEYS) {
            KeyValueTile<T> tile = tile_at(key);
            const KeyValueTile<T> next = key + KEYS < last ? tile_at(key + KEYS) : tile;
            const int64_t row = first_row(item, key), tile_end = std::min(key + KEYS, context);
            tile.cut_values(tile_end, a.head_dim, cut);
            const int64_t seen = position(item, row) + 1;  // by all rows
            if (seen >= tile_end || tile.are_values_finite(seen - key, a.head_dim)) {
                attend_rows(item, tile, next, key, row, rows);
                continue;
            }
            // A weight of zero does not make a NaN or an infinity zero: to each token the tile ends with its own position.
            for (int64_t token = row / a.group(); token < item.tokens; token++) {
                const int64_t end = std::min(key + KEYS, position(item, token * a.group()) + 1);
                KeyValueTile<T> own(cache, key, end);
                own.cut_values(end, a.head_dim, cut);
                attend_rows(item, own, next, key, token * a.group(), (token + 1) * a.group());
            }
        }
    }

    void attend_rows(const Item& item, const KeyValueTile<T>& tile, const KeyValueTile<T>& next, int64_t key, int64_t row, int64_t last) {
        for (; row < last; row += TILE_ROWS<T>)
            attend_tile(item, tile, next, key, row, std::min<int64_t>(TILE_ROWS<T>, last - row));
    }

    // Rows [row, row + count) over the tile that begins at position `key`.
    void attend_tile(const Item& item, const KeyValueTile<T>& tile, const KeyValueTile<T>& next, int64_t key, int64_t row, int64_t count) {
        const RowOf<T>* query = queries + row * a.head_dim;
        for (int group = 0; group < GROUPS; group += 2) {
            const Part<T> part{{tile.keys[group], tile.keys[group + 1]}, {next.keys[group], next.keys[group + 1]}};
            multiply_parts<T>(count, query, a.head_dim, &part, 1, a.head_dim / STEP<T>, LANES * STEP<T>, products + group * LANES, KEYS, false);
        }
        const bool all_seen = position(item, row) >= key + KEYS - 1;
        for (int64_t i = 0; i < count; i++) {
            const float* row_products = products + i * KEYS;
            if (all_seen)
                weigh_tile<T, true>(row_products, KEYS, scale, weights + i * KEYS, part, row + i);
            else
                weigh_tile<T, false>(row_products, position(item, row + i) - key + 1, scale, weights + i * KEYS, part, row + i);
        }
        for (int64_t column = 0; column < a.head_dim; column += TILE_COLUMNS) {
            Part<T> parts[GROUPS];
            for (int64_t group = 0; group < tile.groups; group++) {
                const T *values = tile.values[group] + column * STEP<T>, *ahead = next.values[group] + column * STEP<T>;
                parts[group] = {{values, values + LANES * STEP<T>}, {ahead, ahead + LANES * STEP<T>}};
            }
            multiply_parts<T>(count, weights, KEYS, parts, tile.groups, LANES / STEP<T>, a.head_dim * STEP<T>,
                              part.sums + row * a.head_dim + column, a.head_dim, true);
        }
    }

    void write(const Item& item, const Weighted& result) const {
        for_each_token(item, [&](int64_t token, int64_t offset) {
            for (int64_t g = 0; g < a.group(); g++) {
                const int64_t row = token * a.group() + g;
                const Vec factor = broadcast(1.0f / lane_sum(load(result.totals + row * LANES)));
                T* target = (T*)a.out + offset + g * a.head_dim;
                // Adding zero makes -0 (which masked keys may or may not have turned into +0) +0.
                for (int64_t i = 0; i < a.head_dim; i += LANES)
                    store(target + i, load(result.sums + row * a.head_dim + i) * factor + broadcast(0.0f));
            }
        });
    }

    const Arguments& a;
    const int64_t rows_limit;
    const float scale;  // of products to powers of two
    Weighted whole, part;
    T* cut;
    RowOf<T> *queries, *weights;
    float* products;
};

// The first sequence whose rows, context or blocks lie outside of what there is; -1: none.
int64_t first_wrong_sequence(const Arguments& a) {
    for (int64_t sequence = 0; sequence < a.sequences; sequence++) {
        const int64_t begin = a.query_starts[sequence], end = a.query_starts[sequence + 1];
        const int64_t context = a.context_lens[sequence];
        const bool is_last = sequence == a.sequences - 1;
        if (begin < 0 || (sequence == 0 && begin != 0) || end < begin || (is_last && end != a.rows)) return sequence;
        if (context < end - begin || context > a.table_width * a.block_size) return sequence;
        const int32_t* table = a.block_tables + sequence * a.table_width;
        for (int64_t block = 0; block * a.block_size < context; block++)
            if (table[block] < 0 || table[block] >= a.num_blocks) return sequence;
    }
    return -1;
}

Items make_items(const Arguments& a) {
    const Items items(new std::vector<Item>);
    const int64_t item_tokens = std::clamp<int64_t>(MAX_ROWS / a.group(), 1, MAX_TOKENS);
    for (int64_t sequence = 0; sequence < a.sequences; sequence++)
        for (int64_t token = 0; token < a.query_len(sequence); token += item_tokens)
            for (int64_t head = 0; head < a.kv_heads; head++) {
                const int64_t tokens = std::min(item_tokens, a.query_len(sequence) - token);
                const int64_t last_position = a.first_position(sequence) + token + tokens - 1;
                items->push_back({sequence, head, token, tokens, 0, splits_up_to(last_position), nullptr});
            }
    return items;
}

template <class T>
void run_items(const Arguments& a, Items items, int threads) {
    std::stable_sort(items->begin(), items->end(), [](const Item& x, const Item& y) { return x.cost() > y.cost(); });
    for_each_dynamic(items->size(), threads, [=](int64_t i) { Worker<T>(a).run((*items)[i]); });
}

// Too few items to keep the threads busy: their splits are items of their own, folded afterwards.
template <class T>
void run_split_items(const Arguments& a, Items items, int threads) {
    int64_t floats = 0;
    const auto size = [&](const Item& item) { return Weighted::size(item.tokens * a.group(), a.head_dim); };
    for (const Item& item : *items) floats += item.last_split * size(item);
    const std::shared_ptr<float[]> memory(new float[floats]);
    const Items parts(new std::vector<Item>);
    float* next = memory.get();
    for (Item& item : *items) {
        item.partial = next;
        for (int64_t split = 0; split < item.last_split; split++, next += size(item))
            parts->push_back({item.sequence, item.kv_head, item.first_token, item.tokens, split, split + 1, next});
    }
    for_each_dynamic(parts->size(), threads, [=](int64_t i) { Worker<T>(a).run((*parts)[i]); });
    for_each_dynamic(items->size(), threads, [=, kept = memory](int64_t i) { Worker<T>(a).run_folding((*items)[i]); });
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API int64_t squadron_paged_attention(const void* query, const void* key_cache, const void* value_cache, void* out,
                                              const int32_t* query_starts, const int32_t* context_lens,
                                              const int32_t* block_tables, int64_t rows, int64_t sequences,
                                              int64_t table_width, int64_t num_blocks, int64_t heads, int64_t kv_heads,
                                              int64_t head_dim, int64_t block_size, float scale, int32_t dtype,
                                              int32_t threads) {
    const Arguments a{query, key_cache, value_cache, out, query_starts, context_lens, block_tables, rows, sequences,
                      table_width, num_blocks, heads, kv_heads, head_dim, block_size, scale};
    if (const int64_t wrong = first_wrong_sequence(a); wrong >= 0) return wrong;
    const Items items = make_items(a);
    int64_t parts = 0;
    for (const Item& item : *items) parts += item.last_split;
    const bool split = threads > 1 && (int64_t)items->size() < 4 * threads && parts > (int64_t)items->size();
    with_dtype(dtype, [&](auto type) {
        using T = decltype(type);
        split ? run_split_items<T>(a, items, threads) : run_items<T>(a, items, threads);
    });
    return -1;
}
