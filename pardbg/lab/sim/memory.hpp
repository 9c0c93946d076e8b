// Memory of the device: the host's, counted, with a limit; and the hooks torch asks for a device.
#pragma once
#include <cstring>

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
  c10::Storage host;  // of an adopted block: what owns the memory
};
using Stats = c10::CachingDeviceAllocator::DeviceStats;
constexpr size_t SEGMENT = 2 << 20;  // reserved memory grows by this

inline std::mutex& memory_lock() {
  struct Tag {};
  return immortal<std::mutex, Tag>();
}
inline Stats& stats(c10::DeviceIndex d) {
  static auto* all = new std::vector<Stats>(device_count());
  return all->at(d);
}
inline void count(c10::DeviceIndex d, size_t size) {
  std::lock_guard guard(memory_lock());
  auto& s = stats(d);
  auto &allocated = s.allocated_bytes[0], &reserved = s.reserved_bytes[0];
  const size_t before = size_t(allocated.current), limit = size_t(settings().memory);
  if (limit && before + size > limit) {
    s.num_ooms++;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "sim out of memory. Tried to allocate ", size,
        " bytes. Device ", int(d), " has a total capacity of ", limit, " bytes of which ",
        limit - before, " bytes is free.");
  }
  allocated.increase(size);
  s.allocation[0].increase(1);
  const size_t needed = (before + size + SEGMENT - 1) / SEGMENT * SEGMENT;
  if (needed > size_t(reserved.current)) reserved.increase(needed - size_t(reserved.current));
}
inline void release(void* context) {
  std::unique_ptr<Block> b(static_cast<Block*>(context));
  std::lock_guard guard(memory_lock());
  stats(b->device).allocated_bytes[0].decrease(b->size);
  stats(b->device).allocation[0].decrease(1);
  if (!b->host) c10::GetCPUAllocator()->raw_deallocate(b->data);
}
inline at::DataPtr device_pointer(void* data, size_t size, c10::DeviceIndex d, c10::Storage host = {}) {
  return {data, new Block{data, size, d, std::move(host)}, &release, c10::Device(DEVICE, d)};
}
inline at::DataPtr adopt(c10::Storage host, c10::DeviceIndex d) {  // a kernel's new output
  count(d, host.nbytes());
  return device_pointer(const_cast<void*>(host.data()), host.nbytes(), d, host);
}

struct Memory final : c10::DeviceAllocator {
  at::DataPtr allocate(size_t size) override {
    if (!size) return {nullptr, nullptr, &c10::detail::deleteNothing, c10::Device(DEVICE, device_here)};
    count(device_here, size);
    // Aligned as CPU tensors are, so that kernels give the same bits.
    return device_pointer(c10::GetCPUAllocator()->raw_allocate(size), size, device_here);
  }
  void copy_data(void* to, const void* from, std::size_t n) const override { std::memcpy(to, from, n); }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard guard(memory_lock());
    for (c10::DeviceIndex d = 0; d < device_count(); d++) {
      auto& reserved = stats(d).reserved_bytes[0];
      reserved.decrease(size_t(reserved.current - stats(d).allocated_bytes[0].current));
    }
  }
  Stats getDeviceStats(c10::DeviceIndex d) override {
    std::lock_guard guard(memory_lock());
    return stats(d);
  }
  void resetAccumulatedStats(c10::DeviceIndex d) override {
    std::lock_guard guard(memory_lock());
    stats(d).allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex d) override {
    std::lock_guard guard(memory_lock());
    stats(d).allocated_bytes[0].reset_peak();
    stats(d).reserved_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex d) override {
    const size_t total = settings().memory ? size_t(settings().memory) : size_t(16) << 30;
    return {total - size_t(getDeviceStats(d).allocated_bytes[0].current), total};
  }
};
inline c10::Allocator* allocator() { return &immortal<Memory>(); }

struct Bytes {  // a part of a storage, and what is done with it
  size_t begin = 0, end = SIZE_MAX;
  bool writes = true;
};
void await_data(const c10::Storage&, Bytes = {});

struct Hooks final : at::PrivateUse1HooksInterface {
  using Index = c10::DeviceIndex;
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(Index) const override { return true; }  // else autograd joins no streams
  Index deviceCount() const override { return device_count(); }
  void setCurrentDevice(Index d) const override { exchange_device(d); }
  Index getCurrentDevice() const override { return device_here; }
  Index exchangeDevice(Index d) const override { return exchange_device(d); }
  Index maybeExchangeDevice(Index d) const override { return exchange_device(d); }
  c10::Device getDeviceFromPtr(void*) const override { return {DEVICE, device_here}; }
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
