// Whether an op's input is finite, and not all zeros: hooks/watch/probes.look, for ordinary tensors.

#pragma once

#include <ATen/core/Tensor.h>

#include "table.hpp"

namespace pardbg {

constexpr int64_t kLeastBytes = 16'384, kFreeNs = 20'000'000;  // probes.LEAST_BYTES, FREE_NS
constexpr int64_t kFewBytes = 64;                              // probes.FEW_BYTES
constexpr double kShare = 0.0005;                              // probes.SHARE
constexpr int64_t kSampled = 16;                               // probes.SAMPLED
constexpr uint32_t kEvery = 10;                                // probes.EVERY

// Bits of NaN or infinity: all exponent bits set. Bits of 0: all but the sign's clear.
template <typename T>
bool all_usual(const void* data, int64_t n, T exponent, bool zeros) {
  const T* values = static_cast<const T*>(data);
  T bad = 0, any = !zeros;
  for (int64_t i = 0; i < n; i++)
    bad |= static_cast<T>((values[i] & exponent) == exponent), any |= static_cast<T>(values[i] << 1);
  return bad == 0 && any != 0;
}
template <typename T>
bool usual_here(const void* data, int64_t n, T exponent, bool zeros, int64_t every, int64_t first) {
  if (every == 1) return all_usual(data, n, exponent, zeros);
  const T* values = static_cast<const T*>(data);
  T bad = 0, any = !zeros;
  for (int64_t i = first; i < n; i += every)
    bad |= static_cast<T>((values[i] & exponent) == exponent), any |= static_cast<T>(values[i] << 1);
  return bad == 0 && any != 0;
}

// Whether an input needs no closer look, in Python. `any`: of any size. Of `gathered` inputs only small
// tensors are read whole, which takes a microsecond: the time is for ops whose values are never meant to be infinite.
// Inputs beyond their share of the time since `since` are sampled: a tensor that is wrong throughout is found at
// the first op. Inputs of sums must not be `zeros` throughout.
inline bool usual(const at::Tensor& t, int64_t bytes, bool any, bool gathered, bool zeros, std::atomic<int64_t>& spent,
                  int64_t since) {
  if (bytes < kLeastBytes && bytes > kFewBytes && !any) return true;
  zeros = zeros && !any && bytes >= kLeastBytes;
  const int64_t t0 = now_ns();
  const auto kind = c10::toRealValueType(t.scalar_type());
  if (!c10::isFloatingType(kind)) return true;
  const bool all = gathered ? bytes < kLeastBytes
                            : static_cast<double>(spent) <= kFreeNs + kShare * static_cast<double>(t0 - since);
  if (!t.is_non_overlapping_and_dense()) return gathered || !all;
  const int64_t n = t.numel() * (t.is_complex() ? 2 : 1);
  const void* data = t.const_data_ptr();
  const int64_t every = all ? 1 : std::max<int64_t>(1, n / kSampled), first = t0 % every;
  bool fine = !all;
  if (kind == at::kFloat) fine = usual_here<uint32_t>(data, n, 0x7F800000u, zeros, every, first);
  else if (kind == at::kDouble)
    fine = usual_here<uint64_t>(data, n, 0x7FF0000000000000ull, zeros, every, first);
  else if (kind == at::kHalf) fine = usual_here<uint16_t>(data, n, 0x7C00, zeros, every, first);
  else if (kind == at::kBFloat16) fine = usual_here<uint16_t>(data, n, 0x7F80, zeros, every, first);
  if (all && !gathered) spent += now_ns() - t0;
  return fine;
}

}  // namespace pardbg
