// Times on the device, by events: hooks/device/device_spans and device_records, without Python. Threads
// of the training record events on the streams that are current there; the agent's thread reads them
// when they are done. Nothing here waits for the device. Anchors of its clock are Python's
// (hooks/device/anchors).

#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>

#include <torch/csrc/jit/python/pybind_utils.h>

#include <cmath>
#include <optional>

#include "state.hpp"

namespace py = pybind11;

namespace pardbg {

constexpr uint8_t kDevice = 19, kDeviceBegin = 20;

struct Limits {
  size_t max_events, max_lanes, kept_anchors;  // event_queue.MAX_EVENTS, MAX_LANES; anchors.KEPT
  double wander, resolution_ns;                // anchors.WANDER, RESOLUTION_NS
};

// Events of a Future's end, a private member. Its `wait` would wait for them too, and have
// the allocator keep the op's memory until our stream was there: later than without us.
using FutureEvents = std::vector<c10::Event> c10::ivalue::Future::*;
struct OfFuture {
  friend FutureEvents events_of(OfFuture);
};
template <FutureEvents member>
struct Opened {
  friend FutureEvents events_of(OfFuture) { return member; }
};
template struct Opened<&c10::ivalue::Future::events_>;

struct Anchor {  // anchors.Anchor
  std::shared_ptr<c10::Event> event;
  int64_t host_ns;
  double error_ns, drift, drift_error;
};

template <typename Guard>
concept SeesCaptures = requires(const Guard& g, const c10::Stream& s) { g.isStreamCapturing(s); };
template <typename Guard>
concept NamesStreams = requires(const Guard& g, const c10::Stream& s) { g.getStreamNativeHandle(s); };
constexpr bool kSeesCaptures = SeesCaptures<c10::impl::VirtualGuardImpl>;
constexpr bool kNamesStreams = NamesStreams<c10::impl::VirtualGuardImpl>;  // from torch 2.11 on

struct Span {  // device_spans.DeviceSpan
  Span(Device& device, int64_t issued_ns, c10::Event* end_event, std::shared_ptr<Follow> op)
      : device(device), issued_ns(issued_ns), end_event(end_event), op(std::move(op)) {}
  Device& device;
  int64_t issued_ns;
  c10::Event* end_event;
  std::shared_ptr<Follow> op;  // for an op, whose record has the rest; else
  Record r{};                  // fields of its record; kind 0: it has none
  bool by_wait = false;        // it ends when a stream waited for it: an upper bound
  int64_t begin_ns = 0, end_ns = 0, error_ns = 0;
  int64_t waited_ns = 0, stood_ns = 0;  // when the host had a stream wait for it, and when that got there
  int num_read = 0;
  std::atomic<bool> dropped{false};
};
using SpanPtr = std::shared_ptr<Span>;

class Device {
 public:
  struct Gap {  // spans left out, on the host's clock; guarded by the lock
    int64_t number = 0, since = 0, until = 0;
  };
  struct Runtime {  // the device's runtime, for a torch that does not tell captures (before 2.13)
    int (*is_capturing)(void*, int*) = nullptr;
    int (*last_error)() = nullptr;  // clears the error: else the program's next check would raise it
  };
  // `own_stream(key)` of Python returns a torch.Stream of our own, or None. `waits_beside`:
  // cuda_runtime.waits_beside.
  Device(c10::Device device, py::function own_stream, bool waits_beside, Runtime runtime,
         const Limits& limits)
      : waits_beside(waits_beside), device_(device), limits_(limits), guard_(device.type()),
        runtime_(runtime), own_stream_(own_stream.release().ptr()) {
    if (!kSeesCaptures && !(kNamesStreams && runtime.is_capturing != nullptr))
      throw std::runtime_error("neither torch nor its runtime says what a stream captures");
    is_capturing(guard_, guard_.getStream(device));  // raises where it cannot be asked
  }
  Device(const Device&) = delete;
  const bool waits_beside;

  // Whether the current stream captures a graph.
  bool capturing() {
    bool is = false;
    safely([&] { is = is_capturing(guard_, guard_.getStream(device_)); });
    return is;
  }
  bool is(const c10::Device& device) const { return device == device_; }
  void write_to(State& s) { state_ = &s; }

  // Begin a span at the next work on the stream (the current one). Null: left out, counted.
  SpanPtr begin(int64_t issued_ns, std::shared_ptr<Follow> op = nullptr,
                std::optional<c10::Stream> on = std::nullopt) {
    SpanPtr span;
    safely([&] {
      const c10::Stream stream = on ? *on : guard_.getStream(device_);
      c10::Event* events[2];
      if (captures(stream) || !take(events, 2)) return;
      const auto made = std::make_shared<Span>(*this, issued_ns, events[1], std::move(op));
      events[0]->record(stream);
      put(stream, events[0], made, kBegin);
      span = made;
    });
    return span;
  }

  // Note that the current stream is to wait for an asynchronous op, if it is the one of the phases:
  // from when it gets there to the op's end it stands.
  void stands(const Follow& op, int64_t waited_ns) {
    safely([&] {
      const c10::Stream stream = guard_.getStream(device_);
      const c10::StreamId computes = computes_;
      if ((computes != kUnknown && computes != stream.id()) || is_capturing(guard_, stream)) return;
      const SpanPtr span = op.span.lock();
      if (!span) return write_wait(op, waited_ns, waited_ns, 0, 0);  // it had ended
      c10::Event* event = nullptr;
      if (span->waited_ns != 0 || !take(&event, 1)) return;
      event->record(stream);
      span->waited_ns = waited_ns;
      put(stream, event, span, kStands);
    });
  }

  // End a span after the last work issued there. False: it is dropped.
  bool end(const SpanPtr& span, std::optional<c10::Stream> on = std::nullopt) {
    return end_by(span, [&]() -> std::optional<c10::Stream> {
      const c10::Stream stream = on ? *on : guard_.getStream(device_);
      return captures(stream) ? std::nullopt : std::optional(stream);
    });
  }

  // End a span with a Work's asynchronous op, just issued where nothing was captured (`begin`); the
  // key identifies the backend's stream.
  bool end_with(const SpanPtr& span, c10d::Work& work, uint16_t group_id, int peer) {
    return end_by(span, [&]() -> std::optional<c10::Stream> {
      const auto future = work.getFuture();
      // Before completion it has no events, and hasError() would wait for them.
      if (!future || !future->completed() || future->hasError()) return std::nullopt;
      const auto& events = (*future).*events_of(OfFuture());
      if (events.empty()) return std::nullopt;
      const auto stream = own(group_id, peer);
      if (!stream) return std::nullopt;
      for (const c10::Event& event : events) event.block(*stream);
      return stream;
    });
  }

  void drop(const SpanPtr& span) {
    if (!span->dropped.exchange(true)) give(span->end_event);
  }

  // Add an anchor of the device's clock. Called in the thread that polls.
  void add_anchor(std::shared_ptr<c10::Event> event, int64_t host_ns, double error_ns, double drift,
                  double drift_error) {
    anchors_.push_back({std::move(event), host_ns, error_ns, drift, drift_error});
    if (anchors_.size() > limits_.kept_anchors) anchors_.pop_front();
  }

  // Read the events that the device has reached; return whether more are to come. One thread at a time.
  bool poll() {
    bool left = anchors_.empty();
    if (left) return true;
    const size_t before = begun_.size();
    safely(unread_, [&] {  // what was recorded before an error of recording is read, too
      for (Lane* lane : lanes()) left |= read_lane(*lane);
    });
    if (unread_) left = false, abandon();
    for (size_t i = 0; i < before; i++) {  // these had begun at the poll before
      const Span& span = *begun_[i];
      if (!span.end_ns && !span.dropped) write(kDeviceBegin, span, span.begin_ns);
    }
    begun_.erase(begun_.begin(), begun_.begin() + static_cast<std::ptrdiff_t>(before));
    return left;
  }

  // Stop timing: close ops whose end will not be read. Events of a device that has
  // failed are kept: torch would warn for each one that it cannot destroy.
  void close() {
    const bool failed = off_.exchange(true) | unread_.exchange(true);
    const std::vector<c10::Event*> free = abandon();
    if (!failed) {
      const OnDevice here(*this);
      for (const c10::Event* event : free) delete event;
      anchors_.clear();
    }
    begun_.clear(), phase.reset(), step.reset();
  }

  // -- phases, steps and the like: with the GIL

  SpanPtr begin_full(int64_t issued_ns, std::optional<c10::Stream> on = std::nullopt) {
    return state_ != nullptr && state_->level.load() > 1 ? begin(issued_ns, nullptr, on) : nullptr;
  }
  bool end_as(const SpanPtr& span, const Record& r, std::optional<c10::Stream> on = std::nullopt) {
    if (!span) return false;
    span->r = r, span->r.kind = kDevice, span->r.flags = 0;
    return end(span, on);
  }
  void begin_phase(int64_t issued_ns) {
    if (phase) drop(phase);  // it did not end
    computes_here();
    phase = begin_full(issued_ns);
  }
  void computes_here() {
    safely([&] { computes_ = guard_.getStream(device_).id(); });
  }
  SpanPtr phase, step;

  size_t num_in_flight() {
    std::lock_guard<std::mutex> guard(lock_);
    return num_ - free_.size();
  }
  std::string failure() {
    std::lock_guard<std::mutex> guard(lock_);
    return failure_;
  }
  Gap captured, refused;
  // Return the period in which spans were left out, and reset it.
  std::pair<int64_t, int64_t> take(Gap& gap) {
    std::lock_guard<std::mutex> guard(lock_);
    return {std::exchange(gap.since, 0), gap.until};
  }
  int64_t num_left_out() const { return captured.number + refused.number + num_lost_; }
  int64_t lead_ns = 0, newest_ns = 0;  // for the span that was reached last

 private:
  enum Point : uint8_t { kBegin, kEnd, kStands };
  struct Entry {
    c10::Event* event;
    SpanPtr span;
    Point point;
  };
  using Lane = std::deque<Entry>;

  // Calls for a device that is not the thread's current one go back to that in a way that makes a
  // context there, hundreds of MB, if it has none: so ours is current meanwhile.
  struct OnDevice {
    c10::OptionalDeviceGuard guard;
    explicit OnDevice(const Device& d) {
      if (d.guard_.getDevice() != d.device_) guard.reset_device(d.device_);
    }
  };

  // Run a function; an error ends all device times, and nothing else. If the device has failed, the
  // program's next call reports it: it is not reported here.
  template <typename F>
  void safely(F&& f) {
    safely(off_, std::forward<F>(f));
  }
  template <typename F>
  void safely(std::atomic<bool>& off, F&& f) {
    if (off.load(std::memory_order_relaxed)) return;
    try {
      const OnDevice here(*this);
      f();
    } catch (const c10::Error&) {
      off_ = off = true;
    } catch (const std::exception& error) {
      off_ = off = true;
      std::lock_guard<std::mutex> guard(lock_);
      failure_ = error.what();
    }
  }

  // Close all ops whose end will not be read; return the events, of which some may be in use.
  std::vector<c10::Event*> abandon() {
    std::unordered_map<c10::Stream, Lane> old;
    std::vector<c10::Event*> events;
    {
      std::lock_guard<std::mutex> guard(lock_);
      old.swap(lanes_), events.swap(free_);
    }
    for (auto& [_, lane] : old)
      for (Entry& entry : lane) {
        if (entry.span->op) entry.span->op->finish();
        events.push_back(entry.event);
      }
    return events;
  }

  template <typename F>
  bool end_by(const SpanPtr& span, F&& stream_of) {
    bool ended = false;
    safely([&] {
      const std::optional<c10::Stream> stream = stream_of();
      if (!stream) return;
      span->end_event->record(*stream);
      put(*stream, span->end_event, span, kEnd);
      ended = true;
    });
    if (!ended) drop(span);
    return ended;
  }

  template <typename Guard>
  bool is_capturing(const Guard& guard, const c10::Stream& stream) {
    if constexpr (SeesCaptures<Guard>) return guard.isStreamCapturing(stream);
    if constexpr (NamesStreams<Guard>) {
      int status = 0;  // cudaStreamCaptureStatusNone
      void* const handle = guard.getStreamNativeHandle(stream);
      if (runtime_.is_capturing(handle, &status) == 0) return status != 0;
      runtime_.last_error();
    }
    return true;  // the legacy stream cannot be asked while a blocking one captures
  }
  bool captures(const c10::Stream& stream) {
    if (!is_capturing(guard_, stream)) return false;
    std::lock_guard<std::mutex> guard(lock_);
    note(captured);
    return true;
  }

  static void note(Gap& gap) {
    gap.until = now_ns(), gap.number += 1;
    if (gap.since == 0) gap.since = gap.until;
  }

  bool take(c10::Event** events, size_t num) {
    std::lock_guard<std::mutex> guard(lock_);
    if (free_.size() + limits_.max_events < num_ + num) {
      note(refused);
      return false;
    }
    for (size_t i = 0; i < num; i++) {
      if (free_.empty()) {
        num_ += 1, events[i] = new c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
      } else {
        events[i] = free_.back(), free_.pop_back();
      }
    }
    return true;
  }
  void give(c10::Event* event) {
    std::lock_guard<std::mutex> guard(lock_);
    free_.push_back(event);
  }

  void put(const c10::Stream& stream, c10::Event* event, const SpanPtr& span, Point point) {
    std::lock_guard<std::mutex> guard(lock_);
    lanes_[stream].push_back({event, span, point});
  }
  std::vector<Lane*> lanes() {  // lanes do not move until the next call
    std::lock_guard<std::mutex> guard(lock_);
    if (lanes_.size() > limits_.max_lanes) std::erase_if(lanes_, [](auto& l) { return l.second.empty(); });
    std::vector<Lane*> found;
    for (auto& [_, lane] : lanes_) found.push_back(&lane);
    return found;
  }
  // Read a lane up to the first event that is not done; return whether there is one. In portions:
  // a recording thread would wait for each lock with which this thread loses its core.
  bool read_lane(Lane& lane) {
    std::vector<Entry> some;
    while (true) {
      {
        std::lock_guard<std::mutex> guard(lock_);
        const auto num = std::min<std::ptrdiff_t>(64, static_cast<std::ptrdiff_t>(lane.size()));
        some.assign(lane.begin(), lane.begin() + num);
      }
      size_t done = 0;
      for (; done < some.size() && some[done].event->query(); done++) read(some[done]);
      {
        std::lock_guard<std::mutex> guard(lock_);
        for (size_t i = 0; i < done; i++) free_.push_back(some[i].event);
        lane.erase(lane.begin(), lane.begin() + static_cast<std::ptrdiff_t>(done));
      }
      if (done < some.size()) return true;
      if (some.empty()) return false;
    }
  }

  std::optional<c10::Stream> own(uint16_t group_id, int peer) {
    const std::pair<int, int> key{group_id, peer};
    {
      std::lock_guard<std::mutex> guard(lock_);
      if (const auto at = own_.find(key); at != own_.end()) return at->second;
    }
    std::optional<c10::Stream> made;
    {
      py::gil_scoped_acquire gil;
      made = py::handle(own_stream_)(key).cast<std::optional<c10::Stream>>();
    }
    std::lock_guard<std::mutex> guard(lock_);
    return own_.emplace(key, made).first->second;
  }

  // DeviceClock.host_time: (host time, its error) of a completed event.
  std::pair<int64_t, int64_t> host_time(const c10::Event& event) const {
    size_t at = anchors_.size() - 1;
    double ms = anchors_[at].event->elapsedTime(event);
    while (ms < 0 && at > 0) ms = anchors_[--at].event->elapsedTime(event);
    const Anchor& anchor = anchors_[at];
    const Anchor* const later = at + 1 < anchors_.size() ? &anchors_[at + 1] : nullptr;
    const double ns = ms * 1e6;
    double drift = anchor.drift, error = anchor.error_ns;
    if (later == nullptr) {
      error += ns * (anchor.drift_error + limits_.wander);
    } else if (drift = later->drift; ns >= 0) {
      error = std::max(error, later->error_ns) + ns * limits_.wander;
    } else {  // before the oldest anchor
      error -= ns * (later->drift_error + limits_.wander);
    }
    int exponent = 0;
    std::frexp(ms, &exponent);
    error += std::max(limits_.resolution_ns, std::ldexp(1e6, exponent - 24));
    return {anchor.host_ns + std::llround(ns + ns * drift), std::llround(std::ceil(error))};
  }

  void read(const Entry& entry) {
    Span& span = *entry.span;
    span.num_read += entry.point != kStands;
    try {
      const auto [at, error] = host_time(*entry.event);
      span.error_ns = std::max(span.error_ns, error);
      if (entry.point == kStands) {
        span.stood_ns = at;
      } else if (entry.point == kBegin) {
        span.begin_ns = newest_ns = at, lead_ns = at - span.issued_ns;
        if (span.op && span.num_read == 1) begun_.push_back(entry.span);
      } else {
        span.end_ns = at;
      }
    } catch (const c10::Error&) {  // an event of another device
      num_lost_ += 1;
    }
    if (span.stood_ns && span.end_ns) {
      const int64_t begin = std::exchange(span.stood_ns, 0);
      write_wait(*span.op, begin, std::max(begin, span.end_ns), begin - span.waited_ns, span.error_ns);
    }
    if (span.num_read < 2 || entry.point == kStands) return;  // streams are read in any order
    if (span.end_ns && span.begin_ns - span.end_ns <= span.error_ns)  // each is off by up to that
      span.end_ns = std::max(span.begin_ns, span.end_ns);
    if (span.begin_ns && span.end_ns) write(kDevice, span, span.end_ns);
    if (!span.op) return;
    const uint16_t source = span.by_wait ? kDoneDevice | kPolled : kDoneDevice;
    if (span.end_ns) span.op->done(span.end_ns, source, span.begin_ns);
    else span.op->finish();
  }

  void write(uint8_t kind, const Span& span, int64_t t1) {
    Record r = span.op ? span.op->r : span.r;
    if (state_ == nullptr || state_->level.load() < 2 || r.kind == 0) return;
    r.kind = kind, r.flags &= static_cast<uint16_t>(~kTimed), r.t0 = span.begin_ns, r.t1 = t1;
    r.a = span.begin_ns - span.issued_ns, r.b = span.error_ns;
    state_->ring.write(r);
  }

  void write_wait(const Follow& op, int64_t t0, int64_t t1, int64_t lead_ns, int64_t error_ns) {
    Record r = op.r;
    if (state_ == nullptr || state_->level.load() < 2) return;
    r.kind = kDevice, r.lane = kLaneWait, r.flags &= static_cast<uint16_t>(~kTimed);
    r.t0 = t0, r.t1 = t1, r.a = lead_ns, r.b = error_ns;
    state_->ring.write(r);
  }

  static constexpr c10::StreamId kUnknown = -1;
  std::atomic<c10::StreamId> computes_{kUnknown};  // the stream of the newest phase
  const c10::Device device_;
  const Limits limits_;
  const c10::impl::VirtualGuardImpl guard_;
  const Runtime runtime_;
  PyObject* const own_stream_;
  State* state_ = nullptr;
  std::atomic<bool> off_{false}, unread_{false};  // nothing is recorded any more; nor read
  std::deque<Anchor> anchors_;  // like begun_, used by the polling thread only
  std::vector<SpanPtr> begun_;  // ops that have arrived, and did not end soon
  std::mutex lock_;             // guards the following members; nothing is called with it held
  std::unordered_map<c10::Stream, Lane> lanes_;
  std::vector<c10::Event*> free_;
  size_t num_ = 0;  // number of existing events
  int64_t num_lost_ = 0;
  std::map<std::pair<int, int>, std::optional<c10::Stream>> own_;
  std::string failure_;
};

}  // namespace pardbg
