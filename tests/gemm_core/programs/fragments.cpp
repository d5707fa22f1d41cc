// Prints every position of fragment.cuh: a line of name, lane, element, row, column.
#include <cstdio>

#include "cuda_on_cpu.h"

#include "gemm_core/fragment.cuh"

using gemm_core::fragment::Position;

template <class Formula>
static void print(const char* name, int elements, Formula formula, int lanes = 32) {
  for (int lane = 0; lane < lanes; ++lane)
    for (int i = 0; i < elements; ++i) {
      const Position at = formula(lane, i);
      std::printf("%s %d %d %d %d\n", name, lane, i, at.row, at.column);
    }
}

int main() {
  using namespace gemm_core::fragment;
  print("mma_m16n8k16_c", 4, mma_c);
  print("mma_m16n8k16_a", 8, mma_a);
  print("mma_m16n8k16_b", 4, mma_b);
  print("mma_m16n8k8_tf32_a", 4, mma_tf32_a);
  print("mma_m16n8k8_tf32_b", 2, mma_tf32_b);
  print("m16n16k16", 8, wmma_accumulator<16, 16>);
  print("m32n8k16", 8, wmma_accumulator<32, 8>);
  print("m8n32k16", 8, wmma_accumulator<8, 32>);
  print("wgmma_m64n128_d", 64, wgmma_d, 128);
  print("address_a", 1, [](int lane, int) { return ldmatrix_a(lane); });
  print("address_b", 1, [](int lane, int) { return ldmatrix_b(lane); });
}
