// Runs one GEMM kernel: numbers as arguments, a, b and c as bytes on stdin, c as bytes on stdout.
#include <cstdio>

#include "cuda_on_cpu.h"

#include GEMM_SOURCE

static unsigned char* read_bytes(std::size_t count) {
  // Exactly as many as the operand has, so that the sanitizer sees a read beyond it.
  void* bytes = nullptr;
  if (posix_memalign(&bytes, 16, count) != 0) std::abort();
  if (std::fread(bytes, 1, count, stdin) != count) std::abort();
  return static_cast<unsigned char*>(bytes);
}

int main(int, char** argv) {
  long long v[11];
  for (int i = 0; i < 11; ++i) v[i] = std::atoll(argv[i + 1]);
  const long long blocks = v[0], threads = v[1], size_a = v[8], size_b = v[9], size_c = v[10];
  const auto* a = reinterpret_cast<const GEMM_ELEMENT*>(read_bytes(size_a));
  const auto* b = reinterpret_cast<const GEMM_ELEMENT*>(read_bytes(size_b));
  auto* c = reinterpret_cast<GEMM_OUTPUT*>(read_bytes(size_c));
  emulation::run(int(blocks), int(threads), [&] {
    gemm(a, b, c, int(v[2]), int(v[3]), int(v[4]), v[5], v[6], v[7]);
  });
  std::fwrite(c, 1, size_c, stdout);
}
