// Runs every kernel on odd sizes, in arrays that are exactly as long as they should be: to be compiled with the address and
// undefined-behaviour sanitizers. Prints what was run; exits 1 where an output was not written or a row alone differs.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "adapter.h"
#include "api.h"
#include "dtype.h"
#include "linear.h"
#include "tape.h"
#include "threads.h"

using namespace squadron;

namespace {

std::mt19937 generator(1);
std::atomic<int> checks = 0;

int below(int limit) { return (int)(generator() % (unsigned)limit); }

void check(bool holds, const char* what) {
    checks++;
    if (holds) return;
    std::printf("wrong: %s\n", what);
    std::exit(1);
}

// On the heap, so that a step too far is seen.
template <class T>
using Array = std::unique_ptr<T[]>;

void from_float(float x, float& target) { target = x; }
void from_float(float x, bfloat16& target) { std::memcpy(&target, (const char*)&x + 2, 2); }

template <class T>
Array<T> random_array(int64_t size) {
    std::normal_distribution<float> normal;
    Array<T> array(new T[size]);
    for (int64_t i = 0; i < size; i++) from_float(normal(generator), array[i]);
    return array;
}

template <class T>
Array<T> poisoned_array(int64_t size) {
    Array<T> array(new T[size]);
    for (int64_t i = 0; i < size; i++) from_float(NAN, array[i]);
    return array;
}

Array<int32_t> index_array(int64_t size, int limit) {
    Array<int32_t> array(new int32_t[size]);
    for (int64_t i = 0; i < size; i++) array[i] = below(limit);
    return array;
}

template <class T>
void check_written(const Array<T>& array, int64_t size, const char* what) {
    for (int64_t i = 0; i < size; i++) check(std::isfinite(to_float(array[i])), what);
}

// The groups of a quantized weight, which become its runs.
struct Groups {
    std::vector<int32_t> lengths, firsts{0};

    explicit Groups(PackedWeight& weight) {
        for (int64_t leaf = 0; leaf < weight.leaves; leaf++) {
            for (int64_t k = 0; k < weight.leaf_length(); k += GROUP)
                lengths.push_back((int32_t)std::min(GROUP, weight.leaf_length() - k));
            firsts.push_back((int32_t)lengths.size());
        }
        weight.runs = lengths.data(), weight.leaf_runs = firsts.data();
    }
};

template <class T>
Array<char> digits_of(const PackedWeight& weight, const T* x, int64_t rows, int threads) {
    const int64_t bytes = squadron_digits_bytes(&weight);
    if (bytes == 0) return nullptr;
    Array<char> digits(new char[rows * bytes]);
    squadron_encode_digits(&weight, x, rows, digits.get(), threads);
    return digits;
}

// multiply(x, rows, result, threads): all rows x [rows, in], and one alone -> [rows, out] of Out.
template <class Out, class T, class Multiply>
void check_a_row(const T* x, int64_t rows, int64_t in, int64_t out, Multiply multiply) {
    const int64_t row = below((int)rows);
    auto whole = poisoned_array<Out>(rows * out), alone = poisoned_array<Out>(out);
    multiply(x, rows, whole.get(), 2);
    multiply(x + row * in, 1, alone.get(), 1);
    check_written(whole, rows * out, "linear");
    check(std::memcmp(alone.get(), whole.get() + row * out, out * sizeof(Out)) == 0, "linear, one row");
}

template <class T>
void run_linear(int32_t dtype, Codes codes) {
    const int64_t leaves = 1 << below(4), in = leaves * (codes == INT8 || codes == INT4 ? QUAD : 2) * (1 + below(40)), out = 1 + below(90), rows = 1 + below(70);
    for (int32_t output = 0; output < 3; output++) {
        PackedWeight weight{nullptr, out, in, output == 2 ? 1 : leaves, dtype, output == 2, codes};
        const auto source = random_array<T>((output == 2 ? 2 : 1) * out * in), x = random_array<T>(rows * in);
        const auto bias = random_array<T>(out);
        const Groups groups(weight);
        Array<char> data(new char[squadron_packed_bytes(&weight)]);
        weight.data = data.get();
        if (squadron_pack(&weight, source.get(), 2) != 0) {
            check(codes == COMPACT && !can_compact(weight.leaf_length()), "pack");
            continue;
        }
        const auto multiply = [&](const T* x, int64_t rows, void* result, int threads) {
            const auto digits = digits_of(weight, x, rows, threads);
            squadron_linear(&weight, x, rows, output == 0 ? bias.get() : nullptr, result, output, threads, nullptr, nullptr, 0, nullptr,
                            0, digits.get());
        };
        output == 1 ? check_a_row<float>(x.get(), rows, in, out, multiply) : check_a_row<T>(x.get(), rows, in, out, multiply);
        if (weight.gated) continue;
        const auto ids = index_array(rows, (int)out);
        auto unpacked = poisoned_array<float>(rows * in);
        check(squadron_unpack_rows(&weight, ids.get(), rows, unpacked.get(), 2) == -1, "unpack_rows");
        for (int64_t i = 0; i < rows * in; i++) {
            const float error = std::fabs(unpacked[i] - to_float(source[ids[i / in] * in + i % in]));
            check(error <= (codes == INT8 ? 0.03f : codes == INT4 ? 1.5f : 0.0f), "unpack_rows, what was packed");
        }
        ids[rows - 1] = (int32_t)out;
        check(squadron_unpack_rows(&weight, ids.get(), rows, unpacked.get(), 2) == rows - 1, "unpack_rows, no such row");
    }
}

template <class T>
void run_published(int32_t dtype, Codes codes) {
    const int64_t leaves = 1 << below(3), out = 1 + below(90), rows = 1 + below(70), runs_of_leaf = 1 + below(4);
    std::vector<int32_t> lengths, firsts{0}, numbers;
    for (int64_t run = 0; run < leaves * runs_of_leaf; run++) {
        lengths.push_back(run < runs_of_leaf ? (int32_t)QUAD * (1 + below(32)) : lengths[run - runs_of_leaf]);
        numbers.push_back((int32_t)run);
        if ((run + 1) % runs_of_leaf == 0) firsts.push_back((int32_t)run + 1);
    }
    const int64_t in = std::accumulate(lengths.begin(), lengths.end(), (int64_t)0), runs = (int64_t)lengths.size();
    PackedWeight weight{nullptr, out, in, leaves, dtype, 0, codes, lengths.data(), firsts.data(), nullptr};
    std::vector<int64_t> offsets(leaves + 1);
    squadron_published_offsets(&weight, offsets.data());
    weight.leaf_offsets = offsets.data();
    Array<char> data(new char[squadron_packed_bytes(&weight)]);
    weight.data = data.get();

    constexpr int NAN_FLOAT8 = 127;
    const int limit = codes == ZERO4 ? 16 : codes == FLOAT8 ? NAN_FLOAT8 : 256;
    Array<uint8_t> source(new uint8_t[out * in]);
    Array<int16_t> zeros(new int16_t[out * runs]);
    for (int64_t i = 0; i < out * in; i++) source[i] = (uint8_t)below(limit);
    for (int64_t i = 0; i < out * runs; i++) zeros[i] = (int16_t)(codes == SYM8 ? 128 : below(limit));
    const auto scales = random_array<float>(out * runs);
    const auto x = random_array<T>(rows * in);
    squadron_pack_published(&weight, source.get(), codes == FLOAT8 ? nullptr : zeros.get(), scales.get(), runs, numbers.data(), 2);
    check_a_row<float>(x.get(), rows, in, out, [&](const T* x, int64_t rows, void* result, int threads) {
        const auto digits = digits_of(weight, x, rows, threads);
        squadron_linear(&weight, x, rows, nullptr, result, 1, threads, nullptr, nullptr, 0, nullptr, 0, digits.get());
    });
}

template <class T>
void run_integers(int32_t dtype) {
    const int64_t leaves = 1 << below(4), in = leaves * QUAD * (1 + below(40)), out = 1 + below(90), rows = 1 + below(70);
    PackedWeight weight{nullptr, out, in, leaves, dtype, 0, PRODUCT8};
    std::vector<int64_t> offsets(leaves + 1);
    squadron_int8_offsets(&weight, offsets.data());
    weight.leaf_offsets = offsets.data();
    Array<char> data(new char[squadron_packed_bytes(&weight)]);
    weight.data = data.get();
    Array<int8_t> source(new int8_t[out * in]);
    for (int64_t i = 0; i < out * in; i++) source[i] = (int8_t)(below(256) - 128);
    const auto scales = random_array<float>(out);
    const auto x = random_array<T>(rows * in), bias = random_array<T>(out);
    squadron_pack_int8(&weight, source.get(), scales.get(), 2);
    check_a_row<T>(x.get(), rows, in, out, [&](const T* x, int64_t rows, void* result, int threads) {
        Array<uint8_t> codes(new uint8_t[rows * in]);
        Array<float> of_rows(new float[rows * leaves]);
        squadron_encode_rows(x, rows, in, leaves, 0.0f, codes.get(), of_rows.get(), dtype, threads);
        squadron_int8_linear(&weight, codes.get(), of_rows.get(), rows, bias.get(), result, 0, threads);
    });
}

// An adapter of a weight whose arrays are as long as they must be.
template <class T>
struct RandomAdapter {
    int64_t width = 2 * (1 + below(20)), halves;
    Array<T> down, up;
    Array<float> scales = random_array<float>(width);
    Array<AdapterColumns> columns;
    Adapter adapter;

    explicit RandomAdapter(const PackedWeight& weight) : halves((weight.out_features + LANES - 1) / LANES) {
        down = random_array<T>((width + LANES - 1) / LANES * LANES * weight.in_features);
        up = random_array<T>(halves * LANES * width);
        columns.reset(new AdapterColumns[halves]);
        for (int64_t half = 0; half < halves; half++) columns[half] = {half * LANES * width, 0, width / STEP<T>};
        adapter = {down.get(), width, weight.in_features, weight.leaves, scales.get(), up.get(), columns.get(), halves};
    }
};

template <class T>
void run_adapters(int32_t dtype) {
    const int64_t leaves = 1 << below(3), in = leaves * 2 * (1 + below(40)), out = 1 + below(90), rows = 1 + below(40);
    PackedWeight weight{nullptr, out, in, leaves, dtype, 0, PLAIN};
    const auto source = random_array<T>(out * in), x = random_array<T>(rows * in);
    Array<char> data(new char[squadron_packed_bytes(&weight)]);
    weight.data = data.get();
    squadron_pack(&weight, source.get(), 2);
    const RandomAdapter<T> first(weight), second(weight);
    const Adapter* slots[] = {&first.adapter, nullptr, &second.adapter};
    std::vector<AdapterRun> runs;
    for (int32_t row = 0; row < rows;) {
        const int32_t end = std::min<int32_t>((int32_t)rows, row + 1 + below(3));
        if (below(4)) runs.push_back({row, end, below(3)});
        row = end;
    }
    runs.push_back({INT32_MAX, INT32_MAX, 0});
    const int64_t width = std::max(first.width, second.width) + 2 * below(3);
    const auto multiply = [&](const T* x, int64_t rows, const AdapterRun* runs, int64_t num_runs, int threads) {
        auto inner = poisoned_array<T>(rows * leaves * width);
        auto result = poisoned_array<float>(rows * out);
        squadron_adapter_down(slots, runs, num_runs, inner.get(), width, x, dtype, threads);
        squadron_linear(&weight, x, rows, nullptr, result.get(), 1, threads, slots, runs, num_runs, inner.get(), width);
        check_written(result, rows * out, "adapters");
        return result;
    };
    const auto whole = multiply(x.get(), rows, runs.data(), (int64_t)runs.size(), 2);
    const int64_t row = below((int)rows);
    AdapterRun own{0, 0, 0};
    for (const AdapterRun& run : runs)
        if (run.first <= row && row < run.end) own = {0, 1, run.slot};
    const auto alone = multiply(x.get() + row * in, 1, &own, 1, 1);
    check(std::memcmp(alone.get(), whole.get() + row * out, out * sizeof(float)) == 0, "adapters, one row");
}

template <class T>
void run_elementwise(int32_t dtype) {
    const int64_t rows = 1 + below(40), size = 1 + below(200);
    const auto x = random_array<T>(rows * 2 * size), weight = random_array<T>(size);
    const auto update = random_array<float>(rows * size);
    auto out = poisoned_array<T>(rows * size), residual = random_array<T>(rows * size);
    squadron_silu_and_mul(x.get(), out.get(), rows, size, dtype, 2);
    check_written(out, rows * size, "silu_and_mul");
    out = poisoned_array<T>(rows * size);
    squadron_rms_norm(x.get(), weight.get(), out.get(), rows, size, 1e-6f, dtype, 2);
    check_written(out, rows * size, "rms_norm");
    out = poisoned_array<T>(rows * size);
    squadron_add(update.get(), residual.get(), rows, size, dtype, 2);
    squadron_add_rms_norm(update.get(), residual.get(), weight.get(), out.get(), rows, size, 1e-6f, dtype, 2);
    check_written(out, rows * size, "add_rms_norm");
    check_written(residual, rows * size, "add");
}

template <class T>
void run_experts(int32_t dtype) {
    const int64_t leaves = 1 << below(3), count = leaves * (1 + below(3)), first = below(4), size = first + count + below(4);
    const int64_t step = below(2) ? 2 : QUAD, hidden = step * (1 + below(40)), inner = step * (1 + below(30));
    const int64_t chosen = 1 + below((int)size), rows = 1 + below(40);
    std::vector<PackedWeight> weights;
    std::vector<Array<char>> data;
    std::vector<Groups> groups;
    constexpr Codes kinds[] = {PLAIN, INT8, INT4};  // of one layer: some may not be quantized
    for (int64_t i = 0; i < 2 * count; i++) {
        const bool gated = i < count;
        const Codes codes = step == QUAD ? kinds[below(3)] : PLAIN;
        PackedWeight weight{nullptr, gated ? inner : hidden, gated ? hidden : inner, 1, dtype, gated, codes};
        groups.emplace_back(weight);
        const auto source = random_array<T>(2 * hidden * inner);
        data.emplace_back(new char[squadron_packed_bytes(&weight)]);
        weight.data = data.back().get();
        squadron_pack(&weight, source.get(), 1);
        weights.push_back(weight);
    }
    Array<const PackedWeight*> all(new const PackedWeight*[2 * count]);
    for (int64_t i = 0; i < 2 * count; i++) all[i] = &weights[i];
    const auto logits = random_array<float>(rows * size);
    const auto x = random_array<T>(rows * hidden);
    Array<int32_t> ids(new int32_t[rows * chosen]);
    auto probabilities = poisoned_array<float>(rows * chosen), out = poisoned_array<float>(rows * hidden);
    squadron_route(logits.get(), rows, size, chosen, below(2), ids.get(), probabilities.get(), 2);
    check_written(probabilities, rows * chosen, "route");
    squadron_experts(all.get(), all.get() + count, first, count, leaves, x.get(), rows, ids.get(), probabilities.get(),
                     chosen, out.get(), 2);
    check_written(out, rows * hidden, "experts");
    const int64_t row = below((int)rows);
    auto alone = poisoned_array<float>(hidden);
    squadron_experts(all.get(), all.get() + count, first, count, leaves, x.get() + row * hidden, 1, ids.get() + row * chosen,
                     probabilities.get() + row * chosen, chosen, alone.get(), 1);
    check(std::memcmp(alone.get(), out.get() + row * hidden, hidden * sizeof(float)) == 0, "experts, one row");

    squadron_add_gated(logits.get(), out.get(), out.get(), rows, hidden, 2);
    check_written(out, rows * hidden, "add_gated");

    const int64_t heads = 1 + below(5), kv_heads = 1 + below(3), head_dim = 1 + below(70), width = heads + 2 * kv_heads;
    auto qkv = random_array<T>(rows * width * head_dim);
    squadron_qk_norm(qkv.get(), random_array<T>(head_dim).get(), random_array<T>(head_dim).get(), rows, heads, kv_heads,
                     head_dim, 1e-6f, dtype, 2);
    check_written(qkv, rows * width * head_dim, "qk_norm");
}

template <class T>
void run_attention(int32_t dtype) {
    const int64_t kv_heads = 1 + below(3), heads = kv_heads * (1 + below(8)), head_dim = 32 * (1 + below(4)), block_size = 16;
    const int64_t sequences = 1 + below(5), max_context = below(4) == 0 ? 1200 : 150, width = (max_context + 15) / 16;
    const int64_t num_blocks = 1 + sequences * width, max_positions = max_context;
    Array<int32_t> starts(new int32_t[sequences + 1]), contexts(new int32_t[sequences]);
    Array<int32_t> tables = index_array(sequences * width, 1);
    std::vector<int32_t> positions, slots;
    starts[0] = 0;
    for (int64_t s = 0; s < sequences; s++) {
        contexts[s] = 1 + below((int)max_context);
        const int query_len = below(2) ? 1 : 1 + below(contexts[s]);
        starts[s + 1] = starts[s] + query_len;
        for (int64_t block = 0; block < (contexts[s] + 15) / 16; block++)
            tables[s * width + block] = (int32_t)(1 + s * width + block);
        for (int i = contexts[s] - query_len; i < contexts[s]; i++) {
            positions.push_back(i);
            slots.push_back(tables[s * width + i / 16] * 16 + i % 16);
        }
    }
    const int64_t rows = starts[sequences], cache_size = num_blocks * kv_heads * block_size * head_dim;
    auto keys = random_array<T>(cache_size), values = random_array<T>(cache_size);
    const auto qkv = random_array<T>(rows * (heads + 2 * kv_heads) * head_dim);
    const auto angles = random_array<float>(max_positions * head_dim);
    Array<int32_t> position(new int32_t[rows]), slot(new int32_t[rows]);
    std::copy(positions.begin(), positions.end(), position.get());
    std::copy(slots.begin(), slots.end(), slot.get());
    auto queries = poisoned_array<T>(rows * heads * head_dim);
    const auto rotate = [&] {
        return squadron_rotary_and_cache(qkv.get(), position.get(), angles.get(), slot.get(), keys.get(), values.get(),
                                         queries.get(), rows, heads, kv_heads, head_dim, block_size, num_blocks,
                                         max_positions, dtype, 2);
    };
    check(rotate() == -1, "rotary_and_cache");
    check_written(queries, rows * heads * head_dim, "rotary_and_cache");

    std::vector<T> first;
    for (int threads : {1, 2, 5}) {
        auto out = poisoned_array<T>(rows * heads * head_dim);
        const auto attend = [&] {
            return squadron_paged_attention(queries.get(), keys.get(), values.get(), out.get(), starts.get(), contexts.get(),
                                            tables.get(), rows, sequences, width, num_blocks, heads, kv_heads, head_dim,
                                            block_size, 0.1f, dtype, threads);
        };
        check(attend() == -1, "paged_attention");
        check_written(out, rows * heads * head_dim, "paged_attention");
        if (first.empty()) first.assign(out.get(), out.get() + rows * heads * head_dim);
        check(std::memcmp(first.data(), out.get(), first.size() * sizeof(T)) == 0, "paged_attention, threads");
        const int32_t block = std::exchange(tables[0], (int32_t)num_blocks);
        check(attend() == 0, "paged_attention, a block that does not exist");
        tables[0] = block;
    }
    slot[rows - 1] = (int32_t)(num_blocks * block_size);
    check(rotate() == rows - 1, "rotary_and_cache, a slot that does not exist");
}

void run_sampling() {
    const int64_t rows = 1 + below(6), size = 1 + below(700), num_top = below((int)size + 1);
    auto logits = random_array<float>(rows * size);
    for (int i = below(4); i > 0; i--) logits[below((int)(rows * size))] = i == 1 ? NAN : -INFINITY;
    Array<float> temperature(new float[rows]), top_p(new float[rows]), min_p(new float[rows]);
    Array<int64_t> seed(new int64_t[rows]);
    const auto top_k = index_array(rows, 2 * (int)size), choice = index_array(rows, 3), position = index_array(rows, 99);
    for (int64_t r = 0; r < rows; r++) {
        temperature[r] = (float)below(3) / 2;
        top_p[r] = below(2) ? 1.0f : (float)(1 + below(99)) / 100;
        min_p[r] = below(2) ? 0.0f : (float)below(100) / 100;
        seed[r] = (int64_t)(((uint64_t)generator() << 32) | generator());
    }
    Array<int32_t> tokens(new int32_t[rows]), ranks(new int32_t[rows]), top_ids(new int32_t[rows * num_top]);
    Array<float> logprobs(new float[rows]), top(new float[rows * num_top]);
    squadron_sample(logits.get(), rows, size, temperature.get(), top_k.get(), top_p.get(), min_p.get(), seed.get(),
                    choice.get(), position.get(), tokens.get(), 2);
    for (int64_t r = 0; r < rows; r++) check(tokens[r] >= 0 && tokens[r] < size, "sample");
    squadron_token_logprobs(logits.get(), rows, size, tokens.get(), num_top, logprobs.get(), ranks.get(), top_ids.get(),
                            top.get(), 2);
    for (int64_t r = 0; r < rows; r++) check(ranks[r] >= 1 && ranks[r] <= size, "token_logprobs");
    for (int64_t i = 0; i < rows * num_top; i++) check(top_ids[i] >= 0 && top_ids[i] < size, "token_logprobs, best");
}

// The ranks are threads; each opens the file for itself, as processes would.
void run_shared_memory() {
    const int size = 1 << (1 + below(2)), file = memfd_create("ranks", 0);
    check(ftruncate(file, squadron_shm_bytes(size)) == 0, "ftruncate");
    const int64_t rows = 1 + below(3), width = 1 + below(100'000), count = rows * width;
    const auto x = random_array<float>(count);
    std::atomic<int> joined{0};
    const auto rank_of = [&](int rank) {
        const int own = open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDWR);
        SharedMemory* shared = squadron_shm_join(own, rank, size);
        check(shared != nullptr, "shm_join");
        joined++;
        while (joined < size) std::this_thread::yield();
        auto sum = poisoned_array<float>(count), all = poisoned_array<float>(count * size), got = poisoned_array<float>(count);
        check(squadron_shm_all_reduce(shared, x.get(), sum.get(), count, 5000) == 0, "shm_all_reduce");
        check(squadron_shm_all_gather(shared, (char*)x.get(), (char*)all.get(), rows, width * 4, 5000) == 0, "shm_all_gather");
        check(squadron_shm_send(shared, (char*)x.get(), count * 4, 5000) == 0, "shm_send");
        check(squadron_shm_receive(shared, (char*)got.get(), count * 4, 5000) == 0, "shm_receive");
        for (int64_t i = 0; i < count; i++) {
            check(sum[i] == x[i] * (float)size && got[i] == x[i], "shm_all_reduce or shm_receive");
            check(all[i / width * width * size + rank * width + i % width] == x[i], "shm_all_gather");
        }
        check(squadron_shm_barrier(shared, 5000) == 0, "shm_barrier");
        squadron_shm_leave(shared);
        close(own);
    };
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; rank++) ranks.emplace_back(rank_of, rank);
    for (auto& rank : ranks) rank.join();
    close(file);
}

template <class T>
uint64_t word(T argument) {
    uint64_t word = 0;
    std::memcpy(&word, &argument, sizeof argument);
    return word;
}

void run_tape() {
    const int64_t rows = 1 + below(20), size = 1 + below(70);
    auto update = random_array<float>(rows * size), residual = random_array<float>(rows * size);
    auto weight = random_array<float>(size), out = poisoned_array<float>(rows * size);
    Array<float> expected(new float[rows * size]), added(new float[rows * size]);
    std::memcpy(added.get(), residual.get(), rows * size * sizeof(float));
    squadron_add_rms_norm(update.get(), added.get(), weight.get(), expected.get(), rows, size, 1e-5f, FLOAT32, 2);

    int64_t success = 1, result = 1;
    check(squadron_tape_kernel("squadron_sample", &success) < 0, "no kernel of that name is on a tape");
    TapeCall calls[] = {
        {squadron_tape_kernel("squadron_add", &success),
         {word(update.get()), word(residual.get()), word(rows), word(size), word((int32_t)FLOAT32), word(2)}},
        {squadron_tape_kernel("squadron_rms_norm", &success),
         {word(residual.get()), word(weight.get()), word(out.get()), word(rows), word(size), word(1e-5f),
          word((int32_t)FLOAT32), word(2)}},
    };
    check(squadron_tape_replay(calls, 2, &result) == -1, "all calls of a tape succeed");
    check(std::memcmp(out.get(), expected.get(), rows * size * sizeof(float)) == 0, "a tape computes what its calls do");
}

// Every piece is written once, and none is begun before the job before it is done.
void run_jobs() {
    const int threads = 2 + below(3), number = 1 + below(6);
    const int64_t pieces = 1 + below(40);
    std::vector<std::atomic<int>> written(number * pieces);
    std::vector<Job> jobs;
    for (int j = 0; j < number; j++) {
        const bool is_repeatable = below(2), is_in_order = below(2);
        jobs.push_back({pieces, threads, [&written, j, pieces](Piece& piece) {
                            for (int64_t i = 0; i < j * pieces; i++) check(written[i] == 1, "jobs come one after the other");
                            if (piece.may_write()) written[j * pieces + piece.number]++;
                        }, is_in_order, is_repeatable});
    }
    run(jobs.data(), number);
    for (const auto& count : written) check(count == 1, "every piece is written once");
}

// More of them than threads can count.
void run_many_pieces() {
    const int64_t pieces = (1 << 22) + below(1 << 22);
    std::vector<std::atomic<uint8_t>> written(pieces);
    const bool is_repeatable = below(2), is_in_order = below(2);
    perform({pieces, 2, [&](Piece& piece) {
                 if (piece.next >= pieces || !piece.may_write()) check(false, "pieces are those that there are");
                 written[piece.number]++;
             }, is_in_order, is_repeatable});
    for (const auto& count : written) check(count == 1, "every one of many pieces is written once");
}

// A thread that comes to a stand with a piece, until the last job: another computes the piece, and what comes after it.
void run_without_a_thread() {
    const int64_t pieces = 2 + below(10), slow = below((int)pieces);
    std::atomic<int> attempts{0}, late{0};
    std::atomic<bool> is_over{false};
    std::vector<std::atomic<int>> written(pieces);
    const Job jobs[] = {
        {pieces, 2, [&](Piece& piece) {
             if (piece.number == slow && attempts++ == 0)
                 while (!is_over) std::this_thread::yield();
             if (piece.may_write())
                 written[piece.number]++;
             else
                 late++;
         }, false, 1000},
        {3, 2, [&](Piece&) { for (const auto& count : written) check(count == 1, "a job begins when its pieces are written"); }},
        {1, 2, [&](Piece&) { is_over = true; }},
    };
    run(jobs, 3);
    check(attempts >= 2 && late >= 1, "another thread computes the piece of one that does not run");
    for (const auto& count : written) check(count == 1, "and it alone writes it");
}

}  // namespace

int main() {
    check(squadron_start() == 0, "the system gives the level's registers");
    for (int round = 0; round < 30; round++) {
        for (Codes codes : {PLAIN, INT8, INT4}) {
            run_linear<float>(FLOAT32, codes);
            run_linear<bfloat16>(BFLOAT16, codes);
        }
        if (CAN_COMPACT) run_linear<bfloat16>(BFLOAT16, COMPACT);
        for (Codes codes : {ZERO4, SYM8, ZERO8, FLOAT8}) {
            run_published<float>(FLOAT32, codes);
            run_published<bfloat16>(BFLOAT16, codes);
        }
        run_integers<float>(FLOAT32);
        run_integers<bfloat16>(BFLOAT16);
        run_adapters<float>(FLOAT32);
        run_adapters<bfloat16>(BFLOAT16);
        run_elementwise<float>(FLOAT32);
        run_elementwise<bfloat16>(BFLOAT16);
        run_experts<float>(FLOAT32);
        run_experts<bfloat16>(BFLOAT16);
        if (round % 4 == 0) {
            run_attention<float>(FLOAT32);
            run_attention<bfloat16>(BFLOAT16);
        }
        run_sampling();
        run_tape();
        run_jobs();
        if (round % 10 == 0) run_many_pieces();
        run_without_a_thread();
        if (round % 6 == 0) run_shared_memory();
    }
    std::printf("%d checks, vectors of %d floats\n", checks.load(), LANES);
}
