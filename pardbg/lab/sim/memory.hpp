// Memory of the device: the host's, counted, with a limit; and the hooks torch asks for a device.
#pragma once
#include <cstring>
#include <functional>
#include <map>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Storage.h>

#include "streams.hpp"

namespace sim {

struct Block {
  void* data;
  size_t size;
  c10::DeviceIndex device;
  size_t at;           // in the device's memory
  c10::Storage host;  // of an adopted block: what owns the memory
};
using Stats = c10::CachingDeviceAllocator::DeviceStats;
constexpr size_t SEGMENT = 2 << 20;  // reserved memory grows by this

inline std::mutex& memory_lock() {
  struct Tag {};
  return immortal<std::mutex, Tag>();
}
using Observer = std::function<void(int64_t device, int64_t asked, int64_t limit, int64_t free)>;
inline Observer& observer() { return immortal<Observer>(); }  // told of each request that fails

// One device's memory, kept as a caching allocator keeps it: blocks are cut out of segments, and a
// segment goes back whole or not at all, so free blocks may be too small for a request that is
// smaller than all of them together.
struct Pool {
  std::map<size_t, size_t> free, segments;  // where -> size
  size_t next = 0;
  Stats stats;

  std::optional<size_t> take(size_t size) {  // best fit
    auto best = free.end();
    for (auto it = free.begin(); it != free.end(); ++it)
      if (it->second >= size && (best == free.end() || it->second < best->second)) best = it;
    if (best == free.end()) return std::nullopt;
    const auto [at, whole] = *best;
    free.erase(best);
    if (whole > size) free[at + size] = whole - size;
    return at;
  }
  void give(size_t at, size_t size) {
    auto after = free.lower_bound(at);
    if (after != free.end() && at + size == after->first) {
      size += after->second;
      after = free.erase(after);
    }
    if (after != free.begin()) {
      auto before = std::prev(after);
      if (before->first + before->second == at) {
        before->second += size;
        return;
      }
    }
    free[at] = size;
  }
  size_t room() const {
    const int64_t limit = settings().memory ? settings().memory : int64_t(1) << 44;
    return size_t(std::max<int64_t>(0, limit - settings().foreign - stats.reserved_bytes[0].current));
  }
  bool grow(size_t size) {
    const size_t wanted = std::min(room(), (size + SEGMENT - 1) / SEGMENT * SEGMENT);
    if (wanted < size) return false;
    segments[next] = free[next] = wanted;
    next += wanted + SEGMENT;  // two segments never touch
    stats.reserved_bytes[0].increase(wanted);
    return true;
  }
  void trim() {  // give back segments that are free as a whole
    for (auto it = segments.begin(); it != segments.end();) {
      const auto block = free.find(it->first);
      if (block == free.end() || block->second != it->second) { ++it; continue; }
      stats.reserved_bytes[0].decrease(it->second);
      free.erase(block);
      it = segments.erase(it);
    }
  }
};
inline Pool& pool(c10::DeviceIndex d) {
  static auto* all = new std::vector<Pool>(device_count());
  return all->at(d);
}
inline size_t count(c10::DeviceIndex d, size_t size) {  // where the block is
  use(d);
  std::unique_lock guard(memory_lock());
  auto& p = pool(d);
  auto at = p.take(size);
  if (!at && !p.grow(size)) {
    p.trim();
    p.grow(size);
  }
  if (!at) at = p.take(size);
  if (at) {
    p.stats.allocated_bytes[0].increase(size);
    p.stats.allocation[0].increase(1);
    return *at;
  }
  p.stats.num_ooms++;
  const auto limit = settings().memory, held = p.stats.allocated_bytes[0].current;
  const auto free = int64_t(p.room()), cached = p.stats.reserved_bytes[0].current - held;
  guard.unlock();
  if (observer()) observer()(d, int64_t(size), limit, free);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "sim out of memory. Tried to allocate ", size,
      " bytes. Device ", int(d), " has a total capacity of ", limit, " bytes of which ", free,
      " bytes is free; ", held, " bytes are allocated, ", cached, " reserved and not allocated.");
}
inline void release(void* context) {
  std::unique_ptr<Block> b(static_cast<Block*>(context));
  std::lock_guard guard(memory_lock());
  auto& p = pool(b->device);
  p.give(b->at, b->size);
  p.stats.allocated_bytes[0].decrease(b->size);
  p.stats.allocation[0].decrease(1);
  if (!b->host) c10::GetCPUAllocator()->raw_deallocate(b->data);
}
inline at::DataPtr device_pointer(
    void* data, size_t size, c10::DeviceIndex d, size_t at, c10::Storage host = {}) {
  return {data, new Block{data, size, d, at, std::move(host)}, &release, c10::Device(DEVICE, d)};
}
inline at::DataPtr adopt(c10::Storage host, c10::DeviceIndex d) {  // a kernel's new output
  if (!host.nbytes()) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(DEVICE, d)};
  const auto at = count(d, host.nbytes());
  return device_pointer(const_cast<void*>(host.data()), host.nbytes(), d, at, host);
}

struct Memory final : c10::DeviceAllocator {
  at::DataPtr allocate(size_t size) override {
    if (!size) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(DEVICE, current_device())};
    const auto device = current_device();
    const auto at = count(device, size);
    // Aligned as CPU tensors are, so that kernels give the same bits.
    return device_pointer(c10::GetCPUAllocator()->raw_allocate(size), size, device, at);
  }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr&, c10::Stream) override { counts().recorded++; }
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard guard(memory_lock());
    for (c10::DeviceIndex d = 0; d < device_count(); d++) pool(d).trim();
  }
  Stats getDeviceStats(c10::DeviceIndex d) override {
    std::lock_guard guard(memory_lock());
    return pool(d).stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex d) override {
    std::lock_guard guard(memory_lock());
    pool(d).stats.allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex d) override {
    std::lock_guard guard(memory_lock());
    pool(d).stats.allocated_bytes[0].reset_peak();
    pool(d).stats.reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex d) override {
    std::lock_guard guard(memory_lock());
    return {pool(d).room(), settings().memory ? size_t(settings().memory) : size_t(1) << 44};
  }
};
inline c10::Allocator* allocator() { return &immortal<Memory>(); }

// Page-locked memory of the host: copies to it need not wait. A blind device has none, as what it
// would copy is not yet there.
struct Pinned final : c10::Allocator {
  std::mutex lock;
  std::map<const void*, size_t> blocks;
  at::DataPtr allocate(size_t size) override {
    TORCH_CHECK(!settings().blind, "a blind device has no page-locked memory");
    void* data = c10::GetCPUAllocator()->raw_allocate(size);
    std::lock_guard guard(lock);
    blocks[data] = size;
    return {data, data, raw_deleter(), c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  static void release(void* data);
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
  bool has(const void* at) {
    std::lock_guard guard(lock);
    auto after = blocks.upper_bound(at);
    if (after == blocks.begin()) return false;
    const auto& [begin, size] = *--after;
    return at < static_cast<const char*>(begin) + size;
  }
};
inline Pinned& pinned() { return immortal<Pinned>(); }
inline void Pinned::release(void* data) {
  {
    std::lock_guard guard(pinned().lock);
    pinned().blocks.erase(data);
  }
  c10::GetCPUAllocator()->raw_deallocate(data);
}

struct Bytes {  // a part of a storage, and what is done with it
  size_t begin = 0, end = SIZE_MAX;
  bool writes = true;
};
void await_data(const c10::Storage&, Bytes = {});

struct Hooks final : at::PrivateUse1HooksInterface {
  using Index = c10::DeviceIndex;
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(Index d) const override { return has_context(d); }
  Index deviceCount() const override { return device_count(); }
  void setCurrentDevice(Index d) const override { exchange_device(d); }
  Index getCurrentDevice() const override { return current_device(); }
  Index exchangeDevice(Index d) const override { return exchange_device(d); }
  Index maybeExchangeDevice(Index d) const override { return maybe_exchange_device(d); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  bool isPinnedPtr(const void* at) const override { return pinned().has(at); }
  c10::Device getDeviceFromPtr(void*) const override { return {DEVICE, current_device()}; }
  // Random numbers are the CPU's, to the bit.
  const at::Generator& getDefaultGenerator(Index) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(Index) const override { return at::detail::createCPUGenerator(); }
  void resizePrivateUse1Bytes(const c10::Storage& s, size_t size) const override {
    await_data(s);
    c10::DeviceGuard guard(s.device());
    auto fresh = allocator()->allocate(size);
    if (const auto n = std::min(size, s.nbytes())) std::memcpy(fresh.get(), s.data(), n);
    s.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(fresh));
    s.unsafeGetStorageImpl()->set_nbytes(size);
  }
};
static const bool registered = [] {
  c10::SetAllocator(DEVICE, allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace sim
