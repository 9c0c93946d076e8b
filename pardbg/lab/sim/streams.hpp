// Streams, launches and the log of the truth; torch's guard, through which it uses streams and events.
//
// Stream 0 is the default one, 1 to 32 the pool, the others are nobody else's. As with CUDA,
// torch.Stream(), the backend's streams and those that a Future's callbacks run on are the pool's,
// in turns: two of them may be the same.
#pragma once
#include <deque>

#include <ATen/core/GraphImplInterface.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "moments.hpp"

namespace sim {

constexpr auto DEVICE = c10::DeviceType::PrivateUse1;
constexpr int POOL = 32;

struct Queue {
  Time tail = later({}, 0, 0);
  std::deque<Time> flying;
};
struct Entry {  // one launch: begin = end - cost
  std::string name;
  int64_t stream, host, cost;
  Time arrival, end;
};
using Log = std::vector<Entry>;
inline bool logged = false;  // from the first time on that somebody takes the log

inline c10::DeviceIndex device_count() {  // as many as this host has ranks
  static const int n = [] { auto* s = getenv("LOCAL_WORLD_SIZE"); return s ? atoi(s) : 1; }();
  return c10::DeviceIndex(n);
}
// As CUDA's: a thread begins on device 0, to set a device makes a context on it, and what only goes
// back to a device without one (`maybe_exchange`) leaves that to who uses it.
inline thread_local c10::DeviceIndex device_here = 0, target_here = -1;
inline thread_local std::vector<int64_t> streams_here;
inline std::atomic<int64_t>& contexts() { return counts().contexts; }

inline c10::DeviceIndex current_device() { return target_here < 0 ? device_here : target_here; }
inline c10::DeviceIndex or_current(c10::DeviceIndex d) { return d < 0 ? current_device() : d; }
inline void use(c10::DeviceIndex d) { contexts() |= int64_t(1) << d; }
inline bool has_context(c10::DeviceIndex d) { return contexts() >> d & 1; }
inline c10::DeviceIndex exchange_device(c10::DeviceIndex d) {
  TORCH_CHECK(d < device_count(), "sim: no device ", int(d));
  const auto before = current_device();
  if (d < 0) return before;
  target_here = -1;
  if (d != before || d != device_here) use(device_here = d);
  return before;
}
inline c10::DeviceIndex maybe_exchange_device(c10::DeviceIndex d) {
  if (d < 0 || has_context(d)) return exchange_device(d);
  const auto before = current_device();
  target_here = d;
  return before;
}
struct OnDevice {  // goes back by a call that makes a context, as CUDA's events do
  c10::DeviceIndex before;
  explicit OnDevice(c10::DeviceIndex d) : before(exchange_device(d)) {}
  OnDevice(const OnDevice&) = delete;
  ~OnDevice() { exchange_device(before); }
};
inline c10::Stream stream_of(c10::DeviceIndex d, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(DEVICE, or_current(d)), id);
}
inline int64_t& stream_here(c10::DeviceIndex d) {
  streams_here.resize(device_count());
  return streams_here.at(or_current(d));
}
inline c10::Stream current_stream(c10::DeviceIndex d = -1) { return stream_of(d, stream_here(d)); }
inline c10::Stream pool_stream(c10::DeviceIndex d) {
  static std::atomic<int64_t> next{0};
  return stream_of(d, 1 + next++ % POOL);
}
inline std::deque<Queue>& queues(c10::DeviceIndex d) {  // lock() is held
  static auto* all = new std::vector<std::deque<Queue>>(device_count());
  auto& mine = all->at(or_current(d));
  if (mine.empty()) mine.resize(1 + POOL);
  return mine;
}
inline Queue& queue(c10::Stream s) { return queues(s.device_index()).at(s.id()); }
inline c10::Stream own_stream(c10::DeviceIndex d) {
  std::lock_guard guard(lock());
  queues(d).emplace_back();
  return stream_of(d, int64_t(queues(d).size()) - 1);
}

inline thread_local Time recorded_here;  // the event that this thread recorded last
inline Time mark(c10::Stream s) {  // what an event records
  std::lock_guard guard(lock());
  return later({queue(s).tail}, now(), 0);
}
inline void block(c10::Stream s, const Time& t) {  // the stream waits for it, the host does not
  std::lock_guard guard(lock());
  auto& tail = queue(s).tail;
  if (t != tail) tail = later({tail, t}, 0, 0);
}
// Streams from outside of the pool take no part in a capture: another thread may use its own.
inline bool captures(c10::Stream s) { return settings().capturing && s.id() <= POOL; }
struct Stop { Time arrival, end; };
inline Stop hold(c10::Stream s) {  // the stream stops here until somebody settles the end
  std::lock_guard guard(lock());
  auto& tail = queue(s).tail;
  auto arrival = later({tail}, now(), 0);
  return {arrival, tail = held()};
}
inline Time end_of_all(c10::DeviceIndex d) {
  std::lock_guard guard(lock());
  std::vector<Time> tails;
  for (auto& q : queues(d)) tails.push_back(q.tail);
  return later(std::move(tails), 0, 0);
}
inline void log(Entry e) {  // lock() is held
  if (logged) immortal<Log>().push_back(std::move(e));
}

inline int64_t captured_ns = 0;  // what the kernels of the graph cost that is captured

// A kernel. The host goes on at once, unless the stream's queue is full.
inline void launch(c10::Stream s, const std::string& name, int64_t cost) {
  if (cost <= 0) return;
  Time room;
  {
    std::lock_guard guard(lock());
    auto& q = queue(s);
    use(s.device_index());
    const int64_t host = now(), spent = int64_t(double(cost) * settings().speed);
    if (captures(s)) {
      captured_ns += spent;
      return;
    }
    auto arrival = later({q.tail}, host, 0);
    q.tail = later({arrival}, 0, spent);
    log({name, s.id(), host, spent, arrival, q.tail});
    if (const auto limit = settings().queue) {
      auto& flying = q.flying;
      flying.push_back(q.tail);
      while (!flying.empty() && flying.front()->at != UNKNOWN && flying.front()->at <= host)
        flying.pop_front();
      if (int64_t(flying.size()) > limit) {
        room = flying.front();
        flying.pop_front();
      }
    }
  }
  if (room) reach(room);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  using Index = c10::DeviceIndex;
  static Time& time(void* event) { return *static_cast<Time*>(event); }
  c10::DeviceType type() const override { return DEVICE; }
  Device exchangeDevice(Device d) const override { return {DEVICE, exchange_device(d.index())}; }
  Device getDevice() const override { return {DEVICE, current_device()}; }
  void setDevice(Device d) const override { exchange_device(d.index()); }
  void uncheckedSetDevice(Device d) const noexcept override { maybe_exchange_device(d.index()); }
  Index deviceCount() const noexcept override { return device_count(); }
  c10::Stream getStream(Device d) const override { return current_stream(d.index()); }
  c10::Stream getDefaultStream(Device d) const override { return stream_of(d.index(), 0); }
  c10::Stream getStreamFromGlobalPool(Device d, bool) const override { return pool_stream(d.index()); }
  c10::Stream getNewStream(Device d, int) const override { return pool_stream(d.index()); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    return stream_of(s.device_index(), std::exchange(stream_here(s.device_index()), s.id()));
  }
  void* getStreamNativeHandle(const c10::Stream s) const override { return reinterpret_cast<void*>(s.id()); }
  bool queryStream(const c10::Stream& s) const override { return past(mark(s)); }
  void synchronizeStream(const c10::Stream& s) const override { synchronize(mark(s)); }
  void synchronizeDevice(const Index d) const override { synchronize(end_of_all(d)); }
  bool isStreamCapturing(const c10::Stream& s) const override { return captures(s); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override { counts().recorded++; }

  void record(void** e, const c10::Stream& s, const Index, const c10::EventFlag) const override {
    const OnDevice on(s.device_index());
    TORCH_CHECK(!captures(s), "sim: operation not permitted when stream is capturing");
    spin(settings().record_ns);
    if (!*e) {
      counts().live_events++;
      *e = new Time;
    }
    time(*e) = recorded_here = mark(s);
  }
  void destroyEvent(void* e, const Index d) const noexcept override {
    const OnDevice on(d);
    if (e) counts().live_events--;
    delete static_cast<Time*>(e);
  }
  void block(void* e, const c10::Stream& s) const override {
    const OnDevice on(s.device_index());
    if (e) sim::block(s, time(e));
  }
  bool queryEvent(void* e) const override { return !e || past(time(e), settings().query_ns); }
  void synchronizeEvent(void* e) const override { if (e) synchronize(time(e)); }
  double elapsedTime(void* a, void* b, const Index d) const override {
    const OnDevice on(d);
    TORCH_CHECK(a && b, "sim: both events must be recorded");
    TORCH_CHECK(past(time(a)) && past(time(b)), "sim: device not ready");
    const double ns = double(look(time(b)) - look(time(a))) * (1 + settings().drift);
    return float(ns / 1e6);  // 24 bits of ms, as CUDA's
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// A graph, torch.accelerator.Graph: one kernel that costs what its kernels do together. Kernels that
// are captured compute at once, a replay computes nothing.
struct Graph final : at::GraphImplInterface {
  int64_t cost = 0;
  explicit Graph(const at::GraphImplArgs&) {}
  void capture_begin(at::MempoolId_t, at::GraphCaptureMode) override {
    settings().capturing = true;
    captured_ns = 0;
  }
  void capture_end() override {
    settings().capturing = false;
    cost = captured_ns;
  }
  void instantiate() override {}
  void replay() override { launch(current_stream(), "graph", cost); }
  void reset() override { cost = 0; }
  at::MempoolId_t pool() const override { return {0, 1}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}
};

}  // namespace sim

namespace at {
REGISTER_GRAPH_IMPL(SIM, sim::Graph)
}
