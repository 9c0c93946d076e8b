// Is what an op sends finite? hooks/watch/probes.look, for ordinary tensors.

#pragma once

#include <ATen/core/Tensor.h>

#include "table.hpp"

namespace pardbg {

constexpr int64_t kLeastBytes = 16'384, kFreeNs = 20'000'000;  // probes.LEAST_BYTES, FREE_NS
constexpr double kShare = 0.003;                               // probes.SHARE

// All exponent bits set: NaN or infinity.
template <typename T>
bool all_finite(const void* data, int64_t n, T exponent) {
  const T* values = static_cast<const T*>(data);
  T bad = 0;
  for (int64_t i = 0; i < n; i++) bad |= static_cast<T>((values[i] & exponent) == exponent);
  return bad == 0;
}

// False: look closer, in Python. Takes at most its share of the time since `since`, and adds what
// it took to `spent`.
inline bool finite(const at::Tensor& t, int64_t bytes, std::atomic<int64_t>& spent, int64_t since) {
  if (bytes < kLeastBytes) return true;
  const int64_t t0 = now_ns();
  if (static_cast<double>(spent) > kFreeNs + kShare * static_cast<double>(t0 - since)) return true;
  const auto kind = c10::toRealValueType(t.scalar_type());
  if (!c10::isFloatingType(kind)) return true;
  if (!t.is_non_overlapping_and_dense()) return false;
  const int64_t n = t.numel() * (t.is_complex() ? 2 : 1);
  bool fine = false;
  if (kind == at::kFloat) fine = all_finite<uint32_t>(t.const_data_ptr(), n, 0x7F800000u);
  else if (kind == at::kDouble)
    fine = all_finite<uint64_t>(t.const_data_ptr(), n, 0x7FF0000000000000ull);
  else if (kind == at::kHalf) fine = all_finite<uint16_t>(t.const_data_ptr(), n, 0x7C00);
  else if (kind == at::kBFloat16) fine = all_finite<uint16_t>(t.const_data_ptr(), n, 0x7F80);
  spent += now_ns() - t0;
  return fine;
}

}  // namespace pardbg
