// Sketches of tensors on the host, as in hooks/watch/tensor_sketch and row_sketch, in one pass
// and without maps of buckets.

#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace pardbg {

constexpr int64_t kSketch = 256;  // wire.SKETCH

inline uint64_t sketch_hash(int64_t index) {  // tensor_sketch.mixed
  const uint64_t spread = static_cast<uint64_t>(index + 1) * 0x9E3779B97F4A7C15u;
  return (spread ^ static_cast<uint64_t>(static_cast<int64_t>(spread) >> 32)) * 0xD1B54A32D192ED03u;
}
inline int64_t bucket_of(uint64_t hash) { return hash >> 40 & (kSketch - 1); }
inline double sign_of(uint64_t hash) { return static_cast<double>(hash >> 50 & 1) * 2 - 1; }

struct Sketched {
  double most = 0;  // largest finite magnitude
  int64_t bad = 0;  // not finite
};

// Return a bucket; its highest bit is set for a negative sign.
inline uint16_t code_of(int64_t index) {
  const uint64_t hash = sketch_hash(index);
  return static_cast<uint16_t>(bucket_of(hash) | (~hash >> 50 & 1) << 15);
}
constexpr int64_t kCodes = 1 << 20;  // 2 MiB
inline const uint16_t* codes() {     // of the first indices: a look-up takes a third of the time
  static const auto known = [] {
    std::vector<uint16_t> made(kCodes);
    for (int64_t index = 0; index < kCodes; index++) made[index] = code_of(index);
    return made;
  }();
  return known.data();
}

// Return the largest magnitude as the bits of its type: NaN has larger bits than infinity.
template <typename Float, typename Bits, typename T>
Float largest(const T* values, int64_t n) {
  Bits top = 0;
  for (int64_t i = 0; i < n; i++) {
    const auto value = static_cast<Float>(values[i]);
    Bits bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits &= std::numeric_limits<Bits>::max();
    top = bits > top ? bits : top;
  }
  Float found;
  std::memcpy(&found, &top, sizeof found);
  return found;
}

template <typename T>
void add_one(T element, uint16_t code, double* sums) {
  auto value = static_cast<double>(element);
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits ^= static_cast<uint64_t>(code & 0x8000) << 48;
  std::memcpy(&value, &bits, sizeof value);
  sums[code & (kSketch - 1)] += value;
}

// Add `n` consecutive elements, from `index` of the whole on.
template <typename T>
void add_run(const T* values, int64_t n, int64_t index, double* sums, Sketched& seen) {
  constexpr int64_t kBlock = 256;
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Bits = std::conditional_t<std::is_same_v<T, double>, int64_t, int32_t>;
  for (; n > 0; n -= kBlock, values += kBlock, index += kBlock) {
    const int64_t size = std::min(n, kBlock);
    const double most = largest<Wide, Bits>(values, size);
    if (std::isfinite(most) && index + size <= kCodes) {
      const uint16_t* code = codes() + index;
      for (int64_t i = 0; i < size; i++) add_one(values[i], code[i], sums);
      seen.most = std::max(seen.most, most);
      continue;
    }
    for (int64_t i = 0; i < size; i++) {
      const auto value = static_cast<double>(values[i]);
      if (!std::isfinite(value)) {
        seen.bad++;
        continue;
      }
      seen.most = std::max(seen.most, std::fabs(value));
      add_one(values[i], code_of(index + i), sums);
    }
  }
}

// Add a contiguous box of `size` at `offset` of a whole of `shape`; return the pointer behind it.
template <typename T>
const T* add_box(const T* values, at::IntArrayRef size, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& offset, double* sums, Sketched& seen) {
  const auto dims = static_cast<int64_t>(size.size());
  const int64_t run = dims ? size[dims - 1] : 1;
  int64_t runs = 1;
  for (int64_t d = 0; d + 1 < dims; d++) runs *= size[d];
  for (int64_t at = 0; at < runs; at++, values += run) {
    int64_t index = dims ? offset[dims - 1] : 0, rest = at, stride = dims ? shape[dims - 1] : 1;
    for (int64_t d = dims - 2; d >= 0; rest /= size[d], stride *= shape[d], d--)
      index += (offset[d] + rest % size[d]) * stride;
    add_run(values, run, index, sums, seen);
  }
  return values;
}

// Add each row of a contiguous tensor to `sums`: (rows, kSketch), of float64.
template <typename T>
Sketched sketch_of(const at::Tensor& part, const std::vector<int64_t>& shape,
                   const std::vector<int64_t>& offset, double* sums) {
  Sketched seen;
  const T* values = part.const_data_ptr<T>();
  for (int64_t row = 0; row < part.size(0); row++)
    values = add_box(values, part.sizes().slice(1), shape, offset, sums + row * kSketch, seen);
  return seen;
}

inline bool can_sketch(const at::Tensor& t) {
  const auto type = t.scalar_type();
  const bool known = type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
  return known && t.is_cpu();
}
inline std::pair<double, int64_t> sketch(const at::Tensor& part, std::vector<int64_t> shape,
                                         std::vector<int64_t> offset, const at::Tensor& sums) {
  const size_t dims = part.dim() - 1;
  TORCH_CHECK(can_sketch(part) && part.is_contiguous() && shape.size() >= dims && offset.size() >= dims);
  double* to = sums.data_ptr<double>();
  const auto type = part.scalar_type();
  const Sketched seen = type == at::kFloat      ? sketch_of<float>(part, shape, offset, to)
                        : type == at::kDouble   ? sketch_of<double>(part, shape, offset, to)
                        : type == at::kBFloat16 ? sketch_of<at::BFloat16>(part, shape, offset, to)
                                                : sketch_of<at::Half>(part, shape, offset, to);
  return {seen.most, seen.bad};
}

// Add rows' own sketches to one of kSketch, each rotated by the hash of its sample.
inline void turn(const at::Tensor& own, const at::Tensor& hashes, const at::Tensor& to) {
  const double* rows = own.const_data_ptr<double>();
  const int64_t* hash = hashes.const_data_ptr<int64_t>();
  double* sums = to.data_ptr<double>();
  for (int64_t row = 0; row < own.size(0); row++, rows += kSketch) {
    const auto mixed = static_cast<uint64_t>(hash[row]);
    for (int64_t at = 0; at < kSketch; at++)
      sums[(at + bucket_of(mixed)) & (kSketch - 1)] += rows[at] * sign_of(mixed);
  }
}

}  // namespace pardbg
