// Host twin of gemm_core/ptx/cp_async.cuh: copies immediately and aborts on a misaligned address.
#pragma once

namespace gemm_core::ptx {

inline unsigned shared_address(const void* pointer) {
  return unsigned(static_cast<const unsigned char*>(pointer) - shared);
}
inline void cp_async_16(unsigned target, const void* source, int bytes) {
  if (target % 16 || target + 16 > sizeof(shared) || bytes < 0 || bytes > 16) std::abort();
  if (bytes && reinterpret_cast<std::size_t>(source) % 16) std::abort();
  std::memset(shared + target, 0, 16);
  if (bytes) std::memcpy(shared + target, source, bytes);
}
inline void cp_async_16(unsigned target, const void* source) { cp_async_16(target, source, 16); }
inline void cp_async_8(unsigned target, const void* source, bool exists) {
  if (target % 8 || target + 8 > sizeof(shared)) std::abort();
  if (exists && reinterpret_cast<std::size_t>(source) % 8) std::abort();
  std::memset(shared + target, 0, 8);
  if (exists) std::memcpy(shared + target, source, 8);
}
inline void cp_async_4(unsigned target, const void* source, bool exists) {
  if (target % 4 || target + 4 > sizeof(shared)) std::abort();
  if (exists && reinterpret_cast<std::size_t>(source) % 4) std::abort();
  std::memset(shared + target, 0, 4);
  if (exists) std::memcpy(shared + target, source, 4);
}
inline void cp_async_4(unsigned target, const void* source) { cp_async_4(target, source, true); }
inline void cp_async_commit() {}
template <int PENDING>
inline void cp_async_wait() {}

}  // namespace gemm_core::ptx
