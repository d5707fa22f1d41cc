// The product of a 64 x 64 tile of weights and 64 rows of the dense operand, both in shared memory,
// by mma.sync: of half weights, or of float weights as sums of TF32 numbers.
#pragma once

#include "gemm_core/fragment.cuh"
#include "gemm_core/ptx/cp_async.cuh"
#include "gemm_core/ptx/ldmatrix.cuh"
#include "gemm_core/ptx/mma.cuh"
#include "sddmm/tile_weights.cuh"

namespace sddmm {

namespace fragment = gemm_core::fragment;
namespace ptx = gemm_core::ptx;

// What both kinds of weights share. Each of 2 x 2 warps has 32 rows and half of COLUMNS columns.
// X is 64 rows of COLUMNS elements of T, which ldmatrix transposes.
template <class T, int COLUMNS>
struct WarpTile {
  static constexpr int WARP_ROWS = 32, WARP_COLUMNS = COLUMNS / 2;
  static constexpr int FRAGMENTS_M = WARP_ROWS / 16, FRAGMENTS_N = WARP_COLUMNS / 8;
  static constexpr int K_STEPS = TILE_SIDE / 16;
  using LayoutX = gemm_core::Swizzle<COLUMNS / 8>;  // of halves
  using Accumulators = float[FRAGMENTS_M][FRAGMENTS_N][4];

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int row() { return threadIdx.x / 64 * WARP_ROWS; }
  static __device__ __forceinline__ int column() { return threadIdx.x / 32 % 2 * WARP_COLUMNS; }

  // The byte of X from which this lane's first ldmatrix reads.
  static __device__ __forceinline__ u32 first_x() {
    const fragment::Position own = fragment::ldmatrix_a(lane());
    return LayoutX::offset(own.row, (column() + own.column) / 8);
  }
  // Loads rows 16 k_step .. + 15 of X, two fragments of eight columns at a time.
  static __device__ __forceinline__ void load_x(u32 (&b)[FRAGMENTS_N / 2][4], u32 first,
                                                int k_step) {
#pragma unroll
    for (int j = 0; j < FRAGMENTS_N / 2; ++j)
      ptx::ldmatrix_x4_trans(b[j], (first ^ 32 * j) + 16 * COLUMNS * 2 * k_step);
  }
};

// The product of half weights. BY_COLUMN: lines of the tile are columns of W, which ldmatrix
// transposes.
template <class T, int COLUMNS, bool BY_COLUMN>
struct HalfProduct : WarpTile<T, COLUMNS> {
  using Base = WarpTile<T, COLUMNS>;
  using Tile = HalfTile<T>;
  struct Fragments {
    u32 a[Base::FRAGMENTS_M][4], b[Base::FRAGMENTS_N / 2][4];
  };

  // sums += W X. weights, dense: where the tiles are in shared memory. The last argument serves
  // FloatProduct: mma.sync multiplies halves exactly.
  static __device__ __forceinline__ void add(typename Base::Accumulators& sums,
                                             const unsigned char* weights,
                                             const unsigned char* dense, u32&) {
    const u32 first_a = ptx::shared_address(weights) + first_weight();
    const u32 first_x = ptx::shared_address(dense) + Base::first_x();
    Fragments f[2];
    load(f[0], first_a, first_x, 0);
#pragma unroll
    for (int step = 0; step < Base::K_STEPS; ++step) {
      if (step + 1 < Base::K_STEPS) load(f[(step + 1) % 2], first_a, first_x, step + 1);
      const Fragments& now = f[step % 2];
#pragma unroll
      for (int i = 0; i < Base::FRAGMENTS_M; ++i)
#pragma unroll
        for (int j = 0; j < Base::FRAGMENTS_N; ++j)
          ptx::mma_m16n8k16(sums[i][j], now.a[i], now.b[j / 2][j % 2 * 2],
                            now.b[j / 2][j % 2 * 2 + 1], T{});
    }
  }

 private:
  static __device__ __forceinline__ u32 first_weight() {
    if constexpr (BY_COLUMN) {
      const fragment::Position own = fragment::ldmatrix_b(Base::lane());
      return Tile::Layout::offset(own.row, (Base::row() + own.column) / 8);
    } else {
      const fragment::Position own = fragment::ldmatrix_a(Base::lane());
      return Tile::Layout::offset(Base::row() + own.row, own.column / 8);
    }
  }
  static __device__ __forceinline__ void load(Fragments& f, u32 first_a, u32 first_x, int step) {
    constexpr int rows_16_bytes = 16 * TILE_SIDE * 2;
#pragma unroll
    for (int i = 0; i < Base::FRAGMENTS_M; ++i) {
      if constexpr (BY_COLUMN) {
        ptx::ldmatrix_x4_trans(f.a[i], (first_a ^ 32 * i) + rows_16_bytes * step);
      } else {
        ptx::ldmatrix_x4(f.a[i], (first_a ^ 32 * step) + rows_16_bytes * i);
      }
    }
    Base::load_x(f.b, first_x, step);
  }
};

// x as the sum of COUNT TF32 numbers, of 11 bits each: two hold the product of two halves, three hold
// a float. None is rounded: bits past a number's 11 are those of the next. Only the last bits of
// floats that are subnormal, or nearly, have no number to hold them. CAN_BE_SMALL: whether x may be
// such a float.
template <int COUNT, bool CAN_BE_SMALL>
struct Tf32Terms {
  u32 terms[COUNT];
  // Sets bits of `lost` if the sum is not x, a float.
  __device__ __forceinline__ void split(float x, u32& lost) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      terms[i] = __float_as_uint(x) & 0xffffe000;
      x -= __uint_as_float(terms[i]);
    }
    if constexpr (CAN_BE_SMALL) lost |= __float_as_uint(x);
  }
};

// A tile of float X: chunks are XORed as those of FloatTile.
template <int COLUMNS>
struct FloatLayoutX {
  static __device__ __forceinline__ int offset(int row, int chunk) {
    return row * (COLUMNS * 4) + (chunk ^ FloatTile::swizzle(row)) * 16;
  }
};

// Whether the product of two numbers of type T may be subnormal. Two of type f16 make 2^-48 at least.
template <class T>
constexpr bool HAS_SMALL_PRODUCTS = true;
template <>
constexpr bool HAS_SMALL_PRODUCTS<f16> = false;

// The product of float weights, each the sum of TERMS TF32 numbers. A half of X is a TF32 number, a
// float of X is the sum of three; products of both that are below a float's last bit are left out.
// Sums of 16 products are added to `sums` by ordinary additions, as the accumulation of tensor cores
// truncates. Lane q has columns 2 q and 2 q + 1 of eight columns of W, not q and q + 4, as a half
// fragment of X has.
template <class T, int COLUMNS, bool BY_COLUMN, int TERMS>
struct FloatProduct : WarpTile<T, COLUMNS> {
  using Base = WarpTile<T, COLUMNS>;
  using Tile = FloatTile;
  static constexpr bool FLOAT_X = sizeof(T) == 4;
  static constexpr int X_TERMS = FLOAT_X ? 3 : 1, HALVES = 2;
  using Weight = Tf32Terms<TERMS, TERMS == 3 || HAS_SMALL_PRODUCTS<T>>;
  using Factor = Tf32Terms<X_TERMS, FLOAT_X>;
  using LayoutX = typename gemm_core::Select<FLOAT_X, FloatLayoutX<COLUMNS>,
                                             typename Base::LayoutX>::type;

  // sums += W X. Sets bits of `lost` if a factor is not the sum of its TF32 numbers.
  static __device__ __forceinline__ void add(typename Base::Accumulators& sums,
                                             const unsigned char* weights,
                                             const unsigned char* dense, u32& lost) {
#pragma unroll 1
    for (int step = 0; step < Base::K_STEPS; ++step) {
      Weight a[Base::FRAGMENTS_M][HALVES][4];
#pragma unroll
      for (int i = 0; i < Base::FRAGMENTS_M; ++i)
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
          load(a[i][half], weights, 16 * i, 16 * step + 8 * half, lost);
      u32 b[Base::FRAGMENTS_N / 2][4];
      if constexpr (!FLOAT_X)
        Base::load_x(b, ptx::shared_address(dense) + Base::first_x(), step);
#pragma unroll
      for (int j = 0; j < Base::FRAGMENTS_N; ++j) {
        Factor x[HALVES][2];
#pragma unroll
        for (int half = 0; half < HALVES; ++half)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            x[half][e].split(FLOAT_X ? float_of(dense, 16 * step + 8 * half + e, 8 * j)
                                     : half_of(b[j / 2][j % 2 * 2 + half] >> 16 * e),
                             lost);
#pragma unroll
        for (int i = 0; i < Base::FRAGMENTS_M; ++i) {
          float partial[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
          for (int order = 2; order >= 0; --order)  // the smallest products first
#pragma unroll
            for (int half = 0; half < HALVES; ++half)
#pragma unroll
              for (int term = 0; term < TERMS; ++term)
                if (order - term >= 0 && order - term < X_TERMS)
                  multiply(partial, a[i][half], term, x[half], order - term);
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j][e] += partial[e];
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ void multiply(float (&partial)[4],
                                                  const Weight (&a)[4], int term,
                                                  const Factor (&x)[2], int x_term) {
    const u32 fragment[4] = {a[0].terms[term], a[1].terms[term], a[2].terms[term],
                             a[3].terms[term]};
    ptx::mma_m16n8k8_tf32(partial, fragment, x[0].terms[x_term], x[1].terms[x_term]);
  }
  static __device__ __forceinline__ float half_of(u32 half) {
    if constexpr (FLOAT_X) return 0.f;
    else return Numeric<T>::to_float(T{static_cast<u16>(half)});
  }
  // Loads X in this lane's row `row` + 2 q and in its column.
  static __device__ __forceinline__ float float_of(const unsigned char* dense, int row, int first) {
    if constexpr (!FLOAT_X) return 0.f;
    const int column = Base::column() + first + Base::lane() / 4;
    const int at = FloatLayoutX<COLUMNS>::offset(row + Base::lane() % 4 * 2, column / 4);
    return *reinterpret_cast<const float*>(dense + at + column % 4 * 4);
  }

  // Loads the fragment of 16 rows and of eight columns of W from `column` on.
  static __device__ __forceinline__ void load(Weight (&a)[4], const unsigned char* weights,
                                              int first_row, int column, u32& lost) {
    const int row = Base::row() + first_row + Base::lane() / 4;
    const int k = column + Base::lane() % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float2 both;
      if constexpr (BY_COLUMN) {
        both.x = *reinterpret_cast<const float*>(weights + Tile::offset(k, row + 8 * e));
        both.y = *reinterpret_cast<const float*>(weights + Tile::offset(k + 1, row + 8 * e));
      } else {
        both = *reinterpret_cast<const float2*>(weights + Tile::offset(row + 8 * e, k));
      }
      a[e].split(both.x, lost);
      a[e + 2].split(both.y, lost);
    }
  }
};

}  // namespace sddmm
