// What Python sees: plain C functions on pointers to contiguous arrays whose shapes it has checked. No torch headers.
//
// dtype: 0 float32, 1 bfloat16. Index arrays are int32. threads: how many to use at most.
#pragma once

#include <cstdint>

#define SQUADRON_API extern "C" __attribute__((visibility("default")))

namespace squadron {
struct Adapter;
struct AdapterRun;
struct PackedWeight;
struct TapeCall;
class SharedMemory;
}

// --- pack.cpp ----------------------------------------------------------------------------------------------------------

// Bytes that the weight's `data` takes.
SQUADRON_API int64_t squadron_packed_bytes(const squadron::PackedWeight* weight);

// weight.data <- source [out_features (twice if gated), in_features] dtype. 0; -1 if what was to be compact cannot be.
SQUADRON_API int32_t squadron_pack(const squadron::PackedWeight* weight, const void* source, int32_t threads);

// Rows ids [count] of a weight that is not gated -> out [count, in_features] float32. Returns the first i for which row ids[i]
// does not exist, having done nothing; -1: all was done.
SQUADRON_API int64_t squadron_unpack_rows(const squadron::PackedWeight* weight, const int32_t* ids, int64_t count,
                                          float* out, int32_t threads);

// --- published.cpp -----------------------------------------------------------------------------------------------------

// offsets [leaves + 1] <- of a weight of published codes, from its runs.
SQUADRON_API void squadron_published_offsets(const squadron::PackedWeight* weight, int64_t* offsets);

// weight.data <- codes [rows, in_features], zeros (or null) and scales [rows, num_groups]; groups: of each run.
SQUADRON_API void squadron_pack_published(const squadron::PackedWeight* weight, const uint8_t* codes, const int16_t* zeros,
                                          const float* scales, int64_t num_groups, const int32_t* groups, int32_t threads);

// x [rows, in] -> out [rows, width]: columns order [width] of x, zeros where it is negative.
SQUADRON_API void squadron_gather(const void* x, const int32_t* order, void* out, int64_t rows, int64_t in, int64_t width,
                                  int32_t dtype, int32_t threads);

// --- linear.cpp --------------------------------------------------------------------------------------------------------

// x [rows, in_features] dtype; bias [out_features] dtype or null. output 0: out [rows, out_features] dtype;
// 1: float32; 2: silu(gate) * up of a gated weight, dtype. From `slots` on: null, or what squadron_adapter_down was given.
// digits: what squadron_encode_digits made of x, if the weight's squadron_digits_bytes are not 0.
SQUADRON_API void squadron_linear(const squadron::PackedWeight* weight, const void* x, int64_t rows, const void* bias,
                                  void* out, int32_t output, int32_t threads, const squadron::Adapter* const* slots = nullptr,
                                  const squadron::AdapterRun* runs = nullptr, int64_t num_runs = 0, void* inner = nullptr,
                                  int64_t width = 0, const char* digits = nullptr);

// --- digits.cpp --------------------------------------------------------------------------------------------------------

// Bytes of a row's digits; 0 if the weight is multiplied with x as it is.
SQUADRON_API int64_t squadron_digits_bytes(const squadron::PackedWeight* weight);

// x [rows, in_features] bfloat16 -> digits [rows, squadron_digits_bytes].
SQUADRON_API void squadron_encode_digits(const squadron::PackedWeight* weight, const void* x, int64_t rows, char* digits,
                                         int32_t threads);

// --- adapter.cpp -------------------------------------------------------------------------------------------------------

// Columns of a vector: so many outputs lie together in an adapter's B.
SQUADRON_API int32_t squadron_lanes();

// inner [rows, leaves, width] <- scale * A x of the rows that have an adapter; x [rows, in_features] dtype of the linear. slots
// and the first of runs [num_runs] are read again by each call; runs at the end may be empty: first = end, the largest number.
SQUADRON_API void squadron_adapter_down(const squadron::Adapter* const* slots, const squadron::AdapterRun* runs, int64_t num_runs,
                                        void* inner, int64_t width, const void* x, int32_t dtype, int32_t threads);

// --- int8_linear.cpp ---------------------------------------------------------------------------------------------------

// offsets [leaves + 1] <- of a weight of PRODUCT8; weight.data <- codes [rows, in_features], scales [rows].
SQUADRON_API void squadron_int8_offsets(const squadron::PackedWeight* weight, int64_t* offsets);
SQUADRON_API void squadron_pack_int8(const squadron::PackedWeight* weight, const int8_t* codes, const float* scales,
                                     int32_t threads);

// x [rows, in] dtype -> codes [rows, in], of which 128 is zero, and scales [rows, leaves]: `scale`, or if that is 0 the one by which
// the leaf's largest magnitude is 127.
SQUADRON_API void squadron_encode_rows(const void* x, int64_t rows, int64_t in, int64_t leaves, float scale, uint8_t* codes,
                                       float* scales, int32_t dtype, int32_t threads);

// As squadron_linear, on what squadron_encode_rows made of x.
SQUADRON_API void squadron_int8_linear(const squadron::PackedWeight* weight, const uint8_t* x, const float* scales,
                                       int64_t rows, const void* bias, void* out, int32_t output, int32_t threads);

// --- activation.cpp, norm.cpp ------------------------------------------------------------------------------------------

// x [rows, 2 * size] dtype, gate first -> out [rows, size] dtype.
SQUADRON_API void squadron_silu_and_mul(const void* x, void* out, int64_t rows, int64_t size, int32_t dtype,
                                        int32_t threads);

// x, out [rows, size] dtype; weight [size] dtype.
SQUADRON_API void squadron_rms_norm(const void* x, const void* weight, void* out, int64_t rows, int64_t size, float eps,
                                    int32_t dtype, int32_t threads);

// residual [rows, size] dtype += update [rows, size] float32.
SQUADRON_API void squadron_add(const float* update, void* residual, int64_t rows, int64_t size, int32_t dtype,
                               int32_t threads);

// squadron_add, then squadron_rms_norm of the residual as cast.
SQUADRON_API void squadron_add_rms_norm(const float* update, void* residual, const void* weight, void* out, int64_t rows,
                                        int64_t size, float eps, int32_t dtype, int32_t threads);

// qkv [rows, heads + 2 * kv_heads, head_dim] dtype: query and key heads are normed, in place; weights [head_dim] dtype.
SQUADRON_API void squadron_qk_norm(void* qkv, const void* query_weight, const void* key_weight, int64_t rows, int64_t heads,
                                   int64_t kv_heads, int64_t head_dim, float eps, int32_t dtype, int32_t threads);

// --- moe.cpp -----------------------------------------------------------------------------------------------------------

// logits [rows, size] -> ids, probabilities [rows, chosen], chosen <= size: of the largest logits, of equal ones the lower ids.
SQUADRON_API void squadron_route(const float* logits, int64_t rows, int64_t size, int64_t chosen, int32_t normalize,
                                 int32_t* ids, float* probabilities, int32_t threads);

// x [rows, in_features] dtype -> out [rows, in_features]: the experts `first` to `first + count` of those that ids [rows,
// chosen] name, times weights [rows, chosen]. gate_up and down [count]: gated weights and the ones that read what they give,
// of one size each. leaves: a power of two up to 128 that divides count.
SQUADRON_API void squadron_experts(const squadron::PackedWeight* const* gate_up, const squadron::PackedWeight* const* down,
                                   int64_t first, int64_t count, int64_t leaves, const void* x, int64_t rows,
                                   const int32_t* ids, const float* weights, int64_t chosen, float* out, int32_t threads);

// gate [rows]; x, total [rows, size]: total += sigmoid(gate) * x.
SQUADRON_API void squadron_add_gated(const float* gate, const float* x, float* total, int64_t rows, int64_t size,
                                     int32_t threads);

// --- rotary.cpp, attention.cpp -----------------------------------------------------------------------------------------

// qkv [rows, heads + 2 * kv_heads, head_dim] dtype; positions, slots [rows]; cos_sin [max_positions, head_dim] float32;
// caches [num_blocks, kv_heads, block_size, head_dim] dtype; queries [rows, heads, head_dim] dtype.
// Returns the first row whose position or slot does not exist, having done nothing; -1: all was done.
SQUADRON_API int64_t squadron_rotary_and_cache(const void* qkv, const int32_t* positions, const float* cos_sin,
                                               const int32_t* slots, void* key_cache, void* value_cache, void* queries,
                                               int64_t rows, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                               int64_t block_size, int64_t num_blocks, int64_t max_positions,
                                               int32_t dtype, int32_t threads);

// query, out [rows, heads, head_dim] dtype; caches [num_blocks, kv_heads, block_size, head_dim] dtype; query_starts
// [sequences + 1], context_lens [sequences], block_tables [sequences, table_width]. head_dim is a multiple of 32,
// block_size of 16. Returns the first sequence whose rows, context or blocks do not exist, having done nothing; -1: done.
SQUADRON_API int64_t squadron_paged_attention(const void* query, const void* key_cache, const void* value_cache, void* out,
                                              const int32_t* query_starts, const int32_t* context_lens,
                                              const int32_t* block_tables, int64_t rows, int64_t sequences,
                                              int64_t table_width, int64_t num_blocks, int64_t heads, int64_t kv_heads,
                                              int64_t head_dim, int64_t block_size, float scale, int32_t dtype,
                                              int32_t threads);

// --- sampling.cpp, mask.cpp, penalties.cpp, logprobs.cpp --------------------------------------------------------------

// logits [rows, size] -> tokens [rows]; the other columns [rows].
SQUADRON_API void squadron_sample(const float* logits, int64_t rows, int64_t size, const float* temperature,
                                  const int32_t* top_k, const float* top_p, const float* min_p, const int64_t* seed,
                                  const int32_t* choice, const int32_t* position, int32_t* tokens, int32_t threads);

// logits [rows, size]: -inf where a row has words and the token's bit is 0. starts [rows + 1] into words: a row has none, or as
// many as hold a bit for each token.
SQUADRON_API void squadron_apply_mask(float* logits, int64_t rows, int64_t size, const int32_t* starts,
                                      const int32_t* words, int32_t threads);

// logits [rows, size]: changed where a row's tokens are, see penalties.cpp. Row r's are lengths[r] of ids, from starts[r]: the
// first num_prompt[r] of them are the prompt's. Ids outside [0, size) change nothing. The other columns [rows].
SQUADRON_API void squadron_apply_penalties(float* logits, int64_t rows, int64_t size, const int32_t* ids,
                                           const int32_t* starts, const int32_t* lengths, const int32_t* num_prompt,
                                           const float* presence, const float* frequency, const float* repetition,
                                           int32_t threads);

// logits [rows, size]; token_ids, logprobs, ranks [rows]; top_ids, top_logprobs [rows, num_top], num_top <= size.
// A row with a NaN has NaN for logprobs, and the first ids for the best.
SQUADRON_API void squadron_token_logprobs(const float* logits, int64_t rows, int64_t size, const int32_t* token_ids,
                                          int64_t num_top, float* logprobs, int32_t* ranks, int32_t* top_ids,
                                          float* top_logprobs, int32_t threads);

// --- shm.cpp: collectives between processes of one machine -------------------------------------------------------------
//
// Those that return int32 return 0; 1 + r if rank r is gone; -1 - r if it was silent for so many milliseconds; the least
// number there is if /dev/shm is full, the one after it if the group was aborted.

// Size of the file for so many ranks (at most squadron_shm_max_ranks), and how much of its beginning must be reserved.
SQUADRON_API int64_t squadron_shm_bytes(int32_t size);
SQUADRON_API int64_t squadron_shm_reserved_bytes(int32_t size);
SQUADRON_API int32_t squadron_shm_max_ranks();

// Maps the file (zeros at first), which the caller keeps open, and locks this rank's byte of it; null if that fails.
SQUADRON_API squadron::SharedMemory* squadron_shm_join(int32_t file, int32_t rank, int32_t size);
SQUADRON_API void squadron_shm_leave(squadron::SharedMemory* shared);

// From any thread: all that wait in this group, in any of its processes, stop waiting.
SQUADRON_API void squadron_shm_abort(squadron::SharedMemory* shared);

SQUADRON_API int32_t squadron_shm_barrier(squadron::SharedMemory* shared, int64_t milliseconds);

// out [count] = the ranks' x added as a balanced tree; the number of ranks is a power of two.
SQUADRON_API int32_t squadron_shm_all_reduce(squadron::SharedMemory* shared, const float* x, float* out, int64_t count,
                                             int64_t milliseconds);

// x [outer, inner] bytes of each rank -> out [outer, ranks, inner].
SQUADRON_API int32_t squadron_shm_all_gather(squadron::SharedMemory* shared, const char* x, char* out, int64_t outer,
                                             int64_t inner, int64_t milliseconds);

// To the next rank, from the one before (the first comes after the last). Sending waits only where 8 MiB are under way.
SQUADRON_API int32_t squadron_shm_send(squadron::SharedMemory* shared, const char* x, int64_t bytes, int64_t milliseconds);
SQUADRON_API int32_t squadron_shm_receive(squadron::SharedMemory* shared, char* x, int64_t bytes, int64_t milliseconds);

// --- threads.cpp -------------------------------------------------------------------------------------------------------

// Asks the system for what the level's instructions need, for this process, before any other function is called. 0; -1
// where a thread's stack for signals is too small for them; otherwise the number of the error.
SQUADRON_API int32_t squadron_start();

// ids [threads] = the system's ids of the threads that this one's kernels are computed on, this one first; -1: there is none.
SQUADRON_API void squadron_thread_ids(int32_t* ids, int32_t threads);

// --- tape.cpp ----------------------------------------------------------------------------------------------------------

// The number that the kernel of this name has on a tape, and what it returns on success; -1 if it is for none.
SQUADRON_API int32_t squadron_tape_kernel(const char* name, int64_t* success);

// Bytes of a TapeCall.
SQUADRON_API int64_t squadron_tape_call_bytes();

// Makes the calls in turn. Returns the first that fails, having made none after it, and what it returned; -1: all succeeded.
SQUADRON_API int64_t squadron_tape_replay(const squadron::TapeCall* calls, int64_t count, int64_t* result);
