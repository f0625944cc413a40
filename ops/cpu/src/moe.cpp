// Mixture of experts: which experts a row goes to, and the weighted sum of what they give.
//
// A row's sum is taken in order of expert within a leaf of neighbouring experts, and over leaves as a balanced binary tree,
// whatever other rows go to the same experts and however many leaves there are on other ranks.
#include <algorithm>
#include <memory>
#include <vector>

#include "api.h"
#include "linear.h"
#include "threads.h"

namespace squadron {
namespace {

constexpr int64_t GRAIN = 8;  // rows worth waking a thread for
constexpr int32_t SUM_FLOAT32 = 1, SILU_MUL = 2;  // outputs of squadron_linear

// The largest of those that are not taken, the first of equal ones; NaN is never larger.
int32_t best(const float* logits, int64_t size, const int32_t* taken, int64_t num_taken) {
    int32_t found = -1;
    for (int32_t i = 0; i < size; i++)
        if ((found < 0 || logits[i] > logits[found]) && std::find(taken, taken + num_taken, i) == taken + num_taken)
            found = i;
    return found;
}

void route_row(const float* logits, int64_t size, int64_t chosen, bool normalize, int32_t* ids, float* probabilities) {
    for (int64_t i = 0; i < chosen; i++) ids[i] = best(logits, size, ids, i);
    const float largest = logits[ids[0]];
    Vec sums = broadcast(0.0f);
    for (int64_t i = 0; i < size; i += LANES) {
        const Vec masses = exponential(load(logits + i, size - i) - broadcast(largest));
        float lanes[LANES];
        store(lanes, masses);
        for (int64_t lane = size - i; lane < LANES; lane++) lanes[lane] = 0.0f;
        sums += load(lanes);
    }
    float total = lane_sum(sums), kept = 0.0f;
    for (int64_t i = 0; i < chosen; i++) {
        probabilities[i] = exponential(broadcast(logits[ids[i]] - largest))[0] / total;
        kept += probabilities[i];
    }
    for (int64_t i = 0; normalize && i < chosen; i++) probabilities[i] /= kept;
}

// Rows that go to one expert, and where in ids and weights each says so.
struct Visits {
    std::vector<int64_t> starts;  // [count + 1], into places
    std::vector<int64_t> places;  // row * chosen + slot, by expert, then by row
};

Visits visits_of(const int32_t* ids, int64_t number, int64_t first, int64_t count) {
    Visits visits{std::vector<int64_t>(count + 1), {}};
    const auto is_here = [&](int64_t place) { return ids[place] >= first && ids[place] < first + count; };
    for (int64_t place = 0; place < number; place++)
        if (is_here(place)) visits.starts[ids[place] - first + 1]++;
    for (int64_t i = 0; i < count; i++) visits.starts[i + 1] += visits.starts[i];
    visits.places.resize(visits.starts[count]);
    std::vector<int64_t> next(visits.starts.begin(), visits.starts.end() - 1);
    for (int64_t place = 0; place < number; place++)
        if (is_here(place)) visits.places[next[ids[place] - first]++] = place;
    return visits;
}

template <class T>
struct Experts {
    const PackedWeight* const* gate_up;
    const PackedWeight* const* down;
    const T* x;
    int64_t rows, chosen;
    const float* weights;
    int threads;
    Visits visits;
    int64_t hidden = down[0]->out_features, inner = gate_up[0]->out_features;
    std::unique_ptr<T[]> gathered{}, activated{};
    std::unique_ptr<float[]> outputs{};
    std::unique_ptr<char[]> digits{};

    void allocate();
    void multiply(const PackedWeight* weight, const T* rows, int64_t number, void* out, int32_t output);
    void add_expert(int64_t expert, float* sums);
    void add_leaves(int64_t begin, int64_t end, int64_t leaf, float* out);
};

template <class T>
void Experts<T>::allocate() {
    int64_t most = 0, digits_bytes = 0;  // of a row; an expert that is not quantized has none
    for (size_t i = 0; i + 1 < visits.starts.size(); i++) {
        most = std::max(most, visits.starts[i + 1] - visits.starts[i]);
        digits_bytes = std::max({digits_bytes, squadron_digits_bytes(gate_up[i]), squadron_digits_bytes(down[i])});
    }
    gathered.reset(new T[most * hidden]);
    activated.reset(new T[most * inner]);
    outputs.reset(new float[most * hidden]);
    digits.reset(new char[most * digits_bytes]);
}

template <class T>
void Experts<T>::multiply(const PackedWeight* weight, const T* rows, int64_t number, void* out, int32_t output) {
    const bool has_digits = squadron_digits_bytes(weight) > 0;
    if (has_digits) squadron_encode_digits(weight, rows, number, digits.get(), threads);
    squadron_linear(weight, rows, number, nullptr, out, output, threads, nullptr, nullptr, 0, nullptr, 0,
                    has_digits ? digits.get() : nullptr);
}

template <class T>
void Experts<T>::add_expert(int64_t expert, float* sums) {
    const int64_t* places = visits.places.data() + visits.starts[expert];
    const int64_t number = visits.starts[expert + 1] - visits.starts[expert];
    if (number == 0) return;
    for (int64_t i = 0; i < number; i++) std::copy_n(x + places[i] / chosen * hidden, hidden, gathered.get() + i * hidden);
    multiply(gate_up[expert], gathered.get(), number, activated.get(), SILU_MUL);
    multiply(down[expert], activated.get(), number, outputs.get(), SUM_FLOAT32);
    for_each(number, GRAIN, threads, [&](int64_t i) {
        float* sum = sums + places[i] / chosen * hidden;
        const float* output = outputs.get() + i * hidden;
        const Vec weight = broadcast(weights[places[i]]);
        for (int64_t k = 0; k < hidden; k += LANES)
            store(sum + k, load(sum + k, hidden - k) + weight * load(output + k, hidden - k), hidden - k);
    });
}

// out [rows, hidden] = the sum of the experts from begin to end, in leaves of `leaf`; halves first.
template <class T>
void Experts<T>::add_leaves(int64_t begin, int64_t end, int64_t leaf, float* out) {
    if (end - begin == leaf) {
        for_each(rows, GRAIN, threads, [&](int64_t row) { std::fill_n(out + row * hidden, hidden, 0.0f); });
        for (int64_t expert = begin; expert < end; expert++) add_expert(expert, out);
        return;
    }
    const int64_t middle = (begin + end) / 2;
    std::unique_ptr<float[]> right(new float[rows * hidden]);
    add_leaves(begin, middle, leaf, out);
    add_leaves(middle, end, leaf, right.get());
    for_each(rows, GRAIN, threads, [&](int64_t row) {
        for (int64_t i = row * hidden; i < (row + 1) * hidden; i++) out[i] += right[i];
    });
}

}  // namespace
}  // namespace squadron

using namespace squadron;

SQUADRON_API void squadron_route(const float* logits, int64_t rows, int64_t size, int64_t chosen, int32_t normalize,
                                 int32_t* ids, float* probabilities, int32_t threads) {
    for_each(rows, GRAIN, threads, [=](int64_t row) {
        route_row(logits + row * size, size, chosen, normalize != 0, ids + row * chosen, probabilities + row * chosen);
    });
}

SQUADRON_API void squadron_experts(const PackedWeight* const* gate_up, const PackedWeight* const* down, int64_t first,
                                   int64_t count, int64_t leaves, const void* x, int64_t rows, const int32_t* ids,
                                   const float* weights, int64_t chosen, float* out, int32_t threads) {
    if (rows == 0) return;
    with_dtype(gate_up[0]->dtype, [&](auto type) {
        using T = decltype(type);
        Experts<T> experts{gate_up, down, (const T*)x, rows, chosen, weights, threads,
                           visits_of(ids, rows * chosen, first, count)};
        experts.allocate();
        experts.add_leaves(0, count, count / leaves, out);
    });
}

SQUADRON_API void squadron_add_gated(const float* gate, const float* x, float* total, int64_t rows, int64_t size,
                                     int32_t threads) {
    for_each(rows, GRAIN, threads, [=](int64_t row) {
        const Vec weight = broadcast(1.0f) / (broadcast(1.0f) + exponential(broadcast(-gate[row])));
        for (int64_t i = 0; i < size; i += LANES) {
            const Vec sum = load(total + row * size + i, size - i) + weight * load(x + row * size + i, size - i);
            store(total + row * size + i, sum, size - i);
        }
    });
}
