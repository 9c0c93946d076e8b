// Virtual device time: a graph of moments, settings of costs and faults, counters.
//
// A moment is in ns of CLOCK_MONOTONIC. At issue nobody knows when a collective will start (the
// latest arrival over its ranks), and yet events, waits and kernels queue behind it: so a moment
// depends on others and gets its time once all of those have theirs. A held moment gets it from
// outside: the end of a collective, or a device that stops until it is released.
#pragma once
#include <Python.h>
#include <time.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <pybind11/gil.h>

namespace sim {

constexpr int64_t UNKNOWN = -1;

// Wait without the GIL, whoever has it: a GPU's launch would not wait at all, and gloo's worker
// may need the GIL to let go of a tensor that Python has seen.
template <typename F> auto without_gil(F wait) {
  std::optional<pybind11::gil_scoped_release> released;
  if (Py_IsInitialized() && PyGILState_Check()) released.emplace();
  return wait();
}

inline int64_t now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}
inline void sleep_until(int64_t at) {
  timespec until{at / 1'000'000'000, at % 1'000'000'000};
  while (at > now() && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr)) {}
}
inline void spin(int64_t ns) {  // a cost of the host too short to sleep
  for (const int64_t until = now() + ns; now() < until;) {}
}

// Whatever detached threads may touch after main() ends is never destroyed.
template <typename T, typename Tag = T> T& immortal() {
  static auto* it = new T;
  return *it;
}

struct Settings {  // of this process; a test sets them
  std::unordered_map<std::string, int64_t> op_ns;    // a kernel's cost by name, e.g. "aten::mm"
  int64_t launch_ns = 0;                             // of all others
  double speed = 1;                                  // factor on this rank's kernels: a slow device
  int64_t comm_default_ns = 100'000;                 // an op's cost after its last arrival
  double comm_byte_ns = 0;
  int64_t queue = 0;      // launches in flight on a stream before the host blocks; 0: no limit
  int64_t memory = 0;     // bytes of a device; 0: no limit
  int64_t foreign = 0;    // of them, bytes that another process has
  int64_t record_ns = 0;  // host time of recording an event, before it is placed
  int64_t query_ns = 0;   // time after which a query sees an event that is done
  double drift = 0;       // elapsed times are those of a clock that runs (1 + drift) fast
  bool capturing = false;
  bool blind = false;     // kernels do not wait for a peer's data: garbage values, exact times
};
inline Settings& settings() { return immortal<Settings>(); }

struct Counts {
  std::atomic<int64_t> live_events{0}, syncs{0}, data_waits{0};
  std::atomic<int64_t> contexts{0};  // a bit for each device that this process has used
  std::atomic<int64_t> recorded{0};  // blocks of memory that wait for a stream when they are freed
};
inline Counts& counts() { return immortal<Counts>(); }

struct Moment {
  std::atomic<int64_t> at{UNKNOWN};
  int64_t floor = 0, cost = 0;  // at = max(floor, after...) + cost
  bool held = false;
  std::vector<std::shared_ptr<Moment>> after;
};
using Time = std::shared_ptr<Moment>;

inline std::mutex& lock() { return immortal<std::mutex>(); }  // of moments, streams and the log
inline std::condition_variable& settled() { return immortal<std::condition_variable>(); }

// Its time, or UNKNOWN. lock() is held. Iterative: queues get tens of thousands long.
inline int64_t evaluate(const Time& wanted) {
  std::vector<Moment*> stack{wanted.get()};
  while (!stack.empty()) {
    Moment* m = stack.back();
    if (m->at != UNKNOWN) { stack.pop_back(); continue; }
    if (m->held) return UNKNOWN;
    int64_t latest = m->floor;
    Moment* missing = nullptr;
    for (auto& other : m->after) {
      if (other->at == UNKNOWN) { missing = other.get(); break; }
      latest = std::max(latest, other->at.load());
    }
    if (missing) { stack.push_back(missing); continue; }
    m->after.clear();
    m->at = latest + m->cost;
    stack.pop_back();
  }
  return wanted->at;
}
inline Time later(std::vector<Time> after, int64_t floor, int64_t cost) {  // lock() is held
  auto t = std::make_shared<Moment>();
  t->floor = floor;
  t->cost = cost;
  t->after = std::move(after);
  evaluate(t);
  return t;
}
inline Time held() {
  auto t = std::make_shared<Moment>();
  t->held = true;
  return t;
}
inline void settle(const Time& t, int64_t at) {
  std::lock_guard guard(lock());
  t->held = false;
  t->at = at;
  settled().notify_all();
}
inline int64_t look(const Time& t) {  // its time, or UNKNOWN; never blocks
  if (t->at != UNKNOWN) return t->at;
  std::lock_guard guard(lock());
  return evaluate(t);
}
inline bool past(const Time& t, int64_t latency = 0) {
  const auto at = look(t);
  return at != UNKNOWN && at + latency <= now();
}
inline int64_t know(const Time& t) {  // blocks until its time is known
  std::unique_lock guard(lock());
  int64_t at;
  while ((at = evaluate(t)) == UNKNOWN) settled().wait(guard);
  return at;
}
inline void reach(const Time& t) { without_gil([&] { sleep_until(know(t)); }); }
inline void synchronize(const Time& t) {  // what a synchronizing call is
  counts().syncs++;
  reach(t);
}

}  // namespace sim
