// Kernels: at its launch every op computes on the CPU, on aliases of the device's memory; what it
// costs is added to the current stream.
#pragma once
#include <functional>
#include <unordered_set>

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <torch/library.h>

#include "memory.hpp"

namespace sim {

// ---- data on its way: backend ops that still read or write a part of a storage. What touches it
// waits for them on the host, which knows neither of streams nor of waits (FSDP2 uses only events).

struct Flight {
  Bytes bytes;
  std::function<bool()> done;
  std::function<void()> wait;
};
struct Flights {
  std::mutex lock;
  std::unordered_map<c10::StorageImpl*, std::vector<Flight>> of;
  std::atomic<size_t> num{0};
};
inline void pend(const c10::Storage& s, Flight flight) {
  auto& all = immortal<Flights>();
  std::lock_guard guard(all.lock);
  for (auto it = all.of.begin(); it != all.of.end();) {  // what has arrived is forgotten
    std::erase_if(it->second, [](Flight& f) { return f.done(); });
    it = it->second.empty() ? all.of.erase(it) : std::next(it);
  }
  all.of[s.unsafeGetStorageImpl()].push_back(std::move(flight));
  all.num = all.of.size();
}
inline bool collide(const Bytes& a, const Bytes& b) {
  return a.begin < b.end && b.begin < a.end && (a.writes || b.writes);
}
inline void await_data(const c10::Storage& s, Bytes bytes) {
  auto& all = immortal<Flights>();
  if (!all.num) return;
  std::vector<Flight> mine;
  {
    std::lock_guard guard(all.lock);
    auto found = all.of.find(s.unsafeGetStorageImpl());
    if (found == all.of.end()) return;
    for (auto& f : found->second) if (collide(f.bytes, bytes)) mine.push_back(f);
    std::erase_if(found->second, [&](Flight& f) { return collide(f.bytes, bytes); });
    if (found->second.empty()) all.of.erase(found);
    all.num = all.of.size();
  }
  for (auto& f : mine) {
    if (!f.done()) counts().data_waits++;
    without_gil(f.wait);
  }
}

inline Bytes bytes_of(const at::Tensor& t, bool writes) {
  const size_t size = t.element_size(), offset = size_t(t.storage_offset());
  const auto span = at::detail::computeStorageNbytes(t.sizes(), t.strides(), size);
  return {offset * size, offset * size + size_t(span), writes};
}
inline void await_data(const at::Tensor& t, bool writes) { await_data(t.storage(), bytes_of(t, writes)); }

// ---- aliases: the same memory under the other device, the whole storage, so that a view of the
// one is a view of the other

inline at::Tensor alias(c10::Storage s, const at::Tensor& like, c10::DispatchKey key) {
  c10::DispatchKeySet keys(key);
  for (auto k : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative})
    if (like.key_set().has(k)) keys = keys.add(k);
  // Not TensorImpl::VIEW: with bare keys such tensors would be inference tensors.
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(s), keys, like.dtype());
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return t;
}
inline c10::Storage host_storage(const c10::Storage& s) {
  auto* keep = new c10::Storage(s);
  return {c10::Storage::use_byte_size_t(), s.nbytes(),
      at::DataPtr(const_cast<void*>(s.data()), keep,
          [](void* p) { delete static_cast<c10::Storage*>(p); }, c10::Device(c10::kCPU)),
      nullptr, false};
}
inline bool on_device(const at::Tensor& t) { return t.defined() && t.device().type() == DEVICE; }
inline at::Tensor host_alias(const at::Tensor& t) {
  return on_device(t) ? alias(host_storage(t.storage()), t, c10::DispatchKey::CPU) : t;
}

// The tensors of one call, to the host and back.
struct Call {
  struct Pair { at::Tensor device, host; bool grows; };
  std::vector<Pair> pairs;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages;  // device, host
  c10::DeviceIndex device = -1;
  bool view = false;  // reads no data, costs nothing

  at::Tensor to_host(const at::Tensor& t, bool written) {
    if (!on_device(t)) return t;
    for (auto& p : pairs) if (p.device.is_same(t)) return p.host;
    if (device < 0) device = t.device().index();
    if (!view && !settings().blind) await_data(t, written);
    const bool grows = written && !t.numel();  // an out= that the kernel will resize
    c10::Storage host;
    if (grows) {
      host = c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::GetCPUAllocator(), true);
    } else {
      for (auto& [d, h] : storages) if (d.is_alias_of(t.storage())) host = h;
      if (!host) storages.emplace_back(t.storage(), host = host_storage(t.storage()));
    }
    return pairs.emplace_back(Pair{t, alias(host, t, c10::DispatchKey::CPU), grows}).host;
  }
  at::Tensor to_device(const at::Tensor& t) {
    if (!t.defined() || on_device(t)) return t;
    for (auto& p : pairs) if (p.host.is_same(t)) return p.device;
    for (auto& [d, h] : storages)
      if (h.unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl())
        return alias(d, t, c10::DispatchKey::PrivateUse1);
    c10::Storage fresh(c10::Storage::use_byte_size_t(), t.storage().nbytes(),
        adopt(t.storage(), or_current(device)), allocator(), true);
    storages.emplace_back(fresh, t.storage());  // a second output may share it
    return alias(fresh, t, c10::DispatchKey::PrivateUse1);
  }
  void grow() {
    for (auto& [t, host, grows] : pairs) {
      if (!grows || !host.numel()) continue;
      auto* s = t.storage().unsafeGetStorageImpl();
      s->set_data_ptr_noswap(adopt(host.storage(), t.device().index()));
      s->set_nbytes(host.storage().nbytes());
      t.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
    }
  }
  template <typename F> static std::vector<at::Tensor> each(const std::vector<at::Tensor>& list, F f) {
    std::vector<at::Tensor> out;
    for (auto& t : list) out.push_back(f(t));
    return out;
  }
  void argument(c10::IValue& v, bool written) {
    auto f = [&](const at::Tensor& t) { return to_host(t, written); };
    if (v.isTensor()) {
      v = f(v.toTensor());
    } else if (v.isTensorList()) {
      v = each(v.toTensorVector(), f);
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (std::optional<at::Tensor> t : v.toOptionalTensorVector())
        list.push_back(t ? std::optional(f(*t)) : std::nullopt);
      v = std::move(list);
    } else if (v.isDevice() && v.toDevice().type() == DEVICE) {
      device = v.toDevice().index();
      v = c10::Device(c10::kCPU);
    }
  }
  void result(c10::IValue& v) {
    auto f = [&](const at::Tensor& t) { return to_device(t); };
    if (v.isTensor()) v = f(v.toTensor());
    else if (v.isTensorList()) v = each(v.toTensorVector(), f);
  }
};

inline int64_t cost_of(const std::string& name) {
  auto it = settings().op_ns.find(name);
  return it != settings().op_ns.end() ? it->second : settings().launch_ns;
}
inline bool synchronizes(const std::string& name) {  // the host needs the result, as with CUDA
  static const auto* names = new std::unordered_set<std::string>{"aten::nonzero", "aten::equal",
      "aten::masked_select", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim"};
  return names->count(name);
}

// Compute with ``op`` on the host; ``asked`` is the name it costs under.
inline void compute(const c10::OperatorHandle& asked, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto &arguments = op.schema().arguments(), &returns = op.schema().returns();
  auto written = [](const c10::Argument& a) { return a.alias_info() && a.alias_info()->isWrite(); };
  Call call;
  call.view = !returns.empty();
  for (auto& r : returns) call.view = call.view && r.alias_info() && !written(r);
  const size_t base = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); i++) call.argument((*stack)[base + i], written(arguments[i]));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.grow();
  for (size_t i = stack->size() - returns.size(); i < stack->size(); i++) call.result((*stack)[i]);
  if (call.view) return;
  const auto stream = current_stream(call.device);
  launch(stream, asked.schema().name(), cost_of(asked.schema().name()));
  if (synchronizes(asked.schema().name())) synchronize(mark(stream));
}
inline void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { compute(op, op, stack); }

inline c10::OperatorHandle handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}
inline void convolution(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto real = handle("aten::convolution");
  compute(op, real, stack);
}
inline void convolution_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto real = handle("aten::convolution_backward");
  const auto& weight = (*stack)[stack->size() - 8].toTensor();  // (grad, input, weight, stride, ...)
  const bool transposed = (*stack)[stack->size() - 4].toBool();
  const int64_t groups = (*stack)[stack->size() - 2].toInt();
  const std::vector<int64_t> bias{transposed ? weight.size(1) * groups : weight.size(0)};
  stack->insert(stack->end() - 7, c10::IValue(bias));
  compute(op, real, stack);
}

// ---- what allocates, aliases or copies

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<c10::Device>;
using Format = std::optional<at::MemoryFormat>;
constexpr c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

inline at::Tensor empty(c10::IntArrayRef size, Dtype dtype, Layout, Device device, std::optional<bool>, Format format) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, allocator(), KEYS, c10::dtype_or_default(dtype), format);
}
inline at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, Dtype dtype, Layout, Device device, std::optional<bool>) {
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, allocator(), KEYS, c10::dtype_or_default(dtype));
}
inline void fit(c10::TensorImpl* t) {  // the storage grows to what the shape needs
  const auto needed = size_t(at::detail::computeStorageNbytes(
      t->sizes(), t->strides(), t->dtype().itemsize(), size_t(t->storage_offset())));
  if (t->numel() && needed > t->storage().nbytes())
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(t->storage(), needed);
}
inline const at::Tensor& resize_(const at::Tensor& t, c10::IntArrayRef size, Format format) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  fit(impl);
  return t;
}
inline at::Tensor& set_part(at::Tensor& t, c10::Storage s, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(s));
  if (stride.size() == size.size() && stride.data()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  }
  fit(impl);
  return t;
}
inline at::Tensor& set_storage(at::Tensor& t, c10::Storage s) {
  const int64_t n = int64_t(s.nbytes() / t.element_size());
  return set_part(t, std::move(s), 0, {n}, {});
}
inline at::Tensor& set_tensor(at::Tensor& t, const at::Tensor& from) {
  return set_part(t, from.storage(), from.storage_offset(), from.sizes(), from.strides());
}
inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool out = !on_device(to), in = !on_device(from);
  const auto stream = current_stream((out ? from : to).device().index());
  if (out || !settings().blind) {  // also a blind device gives the host what is true
    if (!in) await_data(from, false);
    if (!out) await_data(to, true);
  }
  host_alias(to).copy_(host_alias(from));
  const std::string name = out ? "copy:dtoh" : in ? "copy:htod" : "aten::copy_";
  launch(stream, name, cost_of(name));
  if (out && !(non_blocking && pinned().has(to.storage().data()))) synchronize(mark(stream));
  return to;
}
inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}
inline at::Scalar item(const at::Tensor& t) {
  await_data(t, false);
  synchronize(mark(current_stream(t.device().index())));
  return at::_local_scalar_dense(host_alias(t));
}
inline void record_stream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Storage_storage_offset", &set_part);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &item);
  m.impl("record_stream", &record_stream);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // These have a decomposition, which would go before the fallback and give other bits.
  for (auto* name : {"native_layer_norm", "native_group_norm", "silu_backward", "mish_backward", "_stack",
           "_stack.out", "addr", "addr.out", "any.dims", "any.dims_out", "all.dims", "all.dims_out",
           "native_channel_shuffle"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace sim

namespace at::autocast {
#define SIM_LOW(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIM_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(SIM_LOW)
  AT_FORALL_FP32(SIM_FP32)
}
}  // namespace at::autocast
