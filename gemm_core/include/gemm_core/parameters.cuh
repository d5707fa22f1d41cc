// Compile-time checks that the host packs a kernel's parameters as the kernel reads them. The host
// describes its layout by macros (gemm_core/runtime/launch.py: parameter_macros).
#pragma once

// For a kernel that takes one struct; stands after the struct. PARAMETER_BYTES: the size of the
// host's struct. PARAMETER_FIELDS: GEMM_CORE_FIELD(name, offset) for each of its fields. The host
// writes `inner.x` for field x of the nested struct `inner`.
#define GEMM_CORE_CHECK_STRUCT(Struct)                                            \
  static_assert(sizeof(Struct) == PARAMETER_BYTES,                                \
                "the kernel and the host disagree on the size of the parameters"); \
  namespace parameters_of_the_host {                                              \
  using Parameters = Struct;                                                      \
  PARAMETER_FIELDS                                                                \
  }
#define GEMM_CORE_FIELD(name, offset)                    \
  static_assert(GEMM_CORE_OFFSET(name) == offset,         \
                "the kernel and the host disagree on the offset of parameter " #name);

// NVRTC knows no __builtin_offsetof before 13.1; __INTADDR__ is what its own offsetof is made of.
#ifdef __CUDACC_RTC__
#define GEMM_CORE_OFFSET(name) __INTADDR__(&static_cast<Parameters*>(nullptr)->name)
#else
#define GEMM_CORE_OFFSET(name) __builtin_offsetof(Parameters, name)
#endif

// For a kernel that takes a list of parameters; stands after the kernel. PARAMETER_SIZES: the
// host's sizes, in order.
#define GEMM_CORE_CHECK_LIST(kernel)                                                         \
  static_assert(gemm_core::ParameterList<                                                    \
                    gemm_core::count_equal_parameters<PARAMETER_SIZES>(kernel),              \
                    gemm_core::count_parameters(kernel)>::MATCHES,                           \
                "the kernel and the host disagree on the parameters of " #kernel);

namespace gemm_core {

// FIRST_DIFFERENT: the index of the first parameter whose size differs from the host's, COUNT if
// there is none, -1 if the host has another number of parameters. The error shows it.
template <int FIRST_DIFFERENT, int COUNT>
struct ParameterList {
  static_assert(FIRST_DIFFERENT == COUNT, "the kernel and the host disagree on a parameter's size");
  static constexpr bool MATCHES = FIRST_DIFFERENT == COUNT;
};

template <class... Types>
constexpr int count_parameters(void (*)(Types...)) {
  return sizeof...(Types);
}

template <int... HOST_BYTES, class... Types>
constexpr int count_equal_parameters(void (*)(Types...)) {
  if (sizeof...(HOST_BYTES) != sizeof...(Types)) return -1;
  constexpr int host_bytes[] = {HOST_BYTES...}, kernel_bytes[] = {static_cast<int>(sizeof(Types))...};
  constexpr int count = sizeof...(Types);
  int equal = 0;
  for (int i = 0; i < count && host_bytes[i] == kernel_bytes[i]; ++i) equal = i + 1;
  return equal;
}

}  // namespace gemm_core
