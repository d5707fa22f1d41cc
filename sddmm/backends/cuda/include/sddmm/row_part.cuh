// The part of a row that one lane of a group holds: every LANES-th chunk of sixteen bytes.
#pragma once

#include "sddmm/row_dot.cuh"
#include "sddmm/row_values.cuh"
#include "sddmm/warp.cuh"

namespace sddmm {

// The elements from `i` on. The compiler keeps their address, rather than computing it at each use.
template <class T>
__device__ __forceinline__ const T* from_element(const T* elements, i64 i) {
  asm volatile("" : "+l"(i));
  return elements + i;
}

// The first element that a lane of a group of LANES lanes holds of a row.
template <class T, int LANES>
__device__ __forceinline__ int first_of_lane() {
  return static_cast<int>(threadIdx.x) % LANES * CHUNK_ELEMENTS<T>;
}

// The chunks that a lane holds of a row.
template <int CHUNKS>
struct RowPart {
  Chunk chunk[CHUNKS];
};

// The last rows of an operand, in another tensor: row i, from `first` on, begins i * pitch_bytes +
// shift bytes after row 0.
struct RowsBeyond {
  i64 shift;
  int pitch_bytes, first;
};

// The rows of an operand, as one lane of a group of LANES lanes loads them. CHUNKS: the number of
// chunks of a row that a lane holds. LOAD_BYTES, NO_TAIL: see load_chunk. HAS_BEYOND: whether its
// last rows stand elsewhere.
template <class T, int LANES, int CHUNKS, int LOAD_BYTES, bool NO_TAIL, bool HAS_BEYOND = false>
struct RowParts {
  static constexpr int ELEMENTS = CHUNK_ELEMENTS<T>;
  using Part = RowPart<CHUNKS>;

  const T* first;   // of row 0: the first element of this lane
  int pitch_bytes;  // from row to row
  int elements;     // the number of elements of a row from this lane's first on; may be negative
  RowsBeyond beyond{};

  // offset: that of row 0, in elements. is_frequent: whether its address is worth registers.
  __device__ __forceinline__ RowParts(const T* operand, i64 offset, int pitch_bytes, int k,
                                      bool is_frequent = true)
      : first(is_frequent ? from_element(operand, offset + first_of_lane<T, LANES>())
                          : operand + offset + first_of_lane<T, LANES>()),
        pitch_bytes(pitch_bytes),
        elements(k - first_of_lane<T, LANES>()) {}
  // This lane's first element of row i.
  __device__ __forceinline__ const T* row_of(int i) const {
    const char* begin = reinterpret_cast<const char*>(first);
    int pitch = pitch_bytes;
    if constexpr (HAS_BEYOND) {
      if (i >= beyond.first) begin += beyond.shift, pitch = beyond.pitch_bytes;
    } else {
      asm volatile("" : "+r"(pitch));  // otherwise it is widened early, and the product takes five steps
    }
    return reinterpret_cast<const T*>(begin + static_cast<i64>(i) * pitch);
  }
  // IS_ONCE: see load_global.
  template <bool IS_ONCE = false>
  __device__ __forceinline__ Part load(int i) const {
    return load_from<IS_ONCE>(row_of(i));
  }
  // Zeros, without a load, unless `exists`.
  __device__ __forceinline__ Part load_if(bool exists, int i) const {
    Part part{};
    if constexpr (HAS_BEYOND) {
      // Outside the branch, the addresses of several rows share the constants they are chosen from.
      const T* const row = row_of(i);
      if (exists) part = load_from(row);
    } else if (exists) {
      part = load(i);
    }
    return part;
  }

 private:
  template <bool IS_ONCE = false>
  __device__ __forceinline__ Part load_from(const T* row) const {
    Part part;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c)
      part.chunk[c] = load_chunk<LOAD_BYTES, NO_TAIL, IS_ONCE>(row, c * LANES * ELEMENTS, elements);
    return part;
  }
};

// Stores factor * sums to a row of k elements. STORE_BYTES: see store_elements. NO_TAIL: no chunk
// reaches past k.
template <int LANES, int CHUNKS, int STORE_BYTES, bool NO_TAIL, class T, int ELEMENTS>
__device__ __forceinline__ void store_row(T* row, int k, const float (*sums)[ELEMENTS],
                                          float factor) {
  static_assert(ELEMENTS == CHUNK_ELEMENTS<T>, "a sum for each element");
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const int at = first_of_lane<T, LANES>() + c * LANES * ELEMENTS;
    float scaled[ELEMENTS];
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) scaled[e] = sums[c][e] * factor;
    store_elements<STORE_BYTES>(row + at, scaled, NO_TAIL ? ELEMENTS : k - at);
  }
}

// The elements of a chunk as floats.
template <class T, int ELEMENTS>
__device__ __forceinline__ void widen_chunk(const Chunk& chunk, float (&elements)[ELEMENTS]) {
  static_assert(ELEMENTS == CHUNK_ELEMENTS<T>, "a float for each element");
#pragma unroll
  for (int e = 0; e < ELEMENTS; e += sizeof(T) == 2 ? 2 : 1) {
    if constexpr (sizeof(T) == 2) {
      unpack(chunk.word[e / 2], elements[e], elements[e + 1], T{});
    } else {
      elements[e] = element<T>(chunk, e);
    }
  }
}

// The elements of a part as floats.
template <class T, class Part, int CHUNKS, int ELEMENTS>
__device__ __forceinline__ void widen(const Part& part, float (&elements)[CHUNKS][ELEMENTS]) {
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) widen_chunk<T>(part.chunk[c], elements[c]);
}

// The dot product of a part and floats, over the elements of this lane.
template <class T, class Part, int CHUNKS, int ELEMENTS>
__device__ __forceinline__ float dot(const Part& part, const float (&other)[CHUNKS][ELEMENTS]) {
  float sum = 0.f;
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    float elements[ELEMENTS];
    widen_chunk<T>(part.chunk[c], elements);
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) sum += elements[e] * other[c][e];
  }
  return sum;
}

// The sum of x over the lanes of each group, in all of them.
template <int LANES>
__device__ __forceinline__ float group_sum(float x) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2)
    x += __shfl_xor_sync(FULL_MASK, x, distance);
  return x;
}

// sums[j]: the dot product of row j with the group's own row, in all lanes of the group. The lanes of
// each group pass their parts of both.
template <class T, int LANES, class Part, int BATCH>
__device__ __forceinline__ void group_dots(const Part (&rows)[BATCH], const Part& own,
                                           float (&sums)[BATCH]) {
  constexpr int CHUNKS = sizeof(Part) / sizeof(Chunk);
  if constexpr (sizeof(T) == 2) {
    // Four lanes pass the same elements of a row and of the own one, as those of a nonzero do.
    RowDot<T, BATCH> dots;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      Chunk chunks[BATCH];
#pragma unroll
      for (int j = 0; j < BATCH; ++j) chunks[j] = rows[j].chunk[c];
      dots.add_shared(chunks, own.chunk[c]);
    }
    constexpr int FOURS = LANES / LANES_PER_NONZERO;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int owner = RowDot<T, BATCH>::owner_lane(lane / LANES * FOURS + lane % FOURS);
#pragma unroll
    for (int j = 0; j < BATCH; ++j)
      sums[j] = group_sum<FOURS>(__shfl_sync(FULL_MASK, dots.sum(j), owner));
  } else {
    float elements[CHUNKS][CHUNK_ELEMENTS<T>];
    widen<T>(own, elements);
#pragma unroll
    for (int j = 0; j < BATCH; ++j) sums[j] = group_sum<LANES>(dot<T>(rows[j], elements));
  }
}

// sums += weight * part.
template <class T, class Part, int CHUNKS, int ELEMENTS>
__device__ __forceinline__ void add_part(float (&sums)[CHUNKS][ELEMENTS], const Part& part,
                                         float weight) {
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) add_scaled<T>(sums[c], part.chunk[c], weight);
}

}  // namespace sddmm
