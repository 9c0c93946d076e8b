// State of the hot path for one Core, and the tracking of an issued op to its completion.
//
// Completion never takes the GIL: the future's callback and the Work's end run on the backend's
// worker, some under the Work's own lock.

#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <pythread.h>

#include <functional>
#include <shared_mutex>

#include "looks.hpp"
#include "places.hpp"
#include "table.hpp"

namespace pardbg {

constexpr int64_t kShortNs = 2'000;  // works.SHORT_NS: a wait below found the op complete
constexpr size_t kMaxTensors = 1024, kMaxPolled = 256, kMaxSlow = 4096, kMaxSignatures = 1 << 16;
constexpr int64_t kOpNs = 700;  // own cost of an op here, for the agent's account

// Whether each thread is issuing an op or waiting for one: Python's stacks do not show it, as C++ has
// no frames there. Each thread has its own slot, so that no lock is needed.
enum Standing : int { kNowhere, kIssues, kWaits };
struct Slot {
  std::atomic<unsigned long> thread{0};  // threading.get_ident(); 0: free
  std::atomic<int> in{kNowhere};
};
constexpr size_t kMaxThreads = 256;  // further threads have no slot
inline Slot slots[kMaxThreads];

struct OwnSlot {
  OwnSlot() {
    for (Slot& s : slots) {
      unsigned long free = 0;
      if (s.thread.load(std::memory_order_relaxed) == 0 &&
          s.thread.compare_exchange_strong(free, PyThread_get_thread_ident())) {
        slot = &s;
        return;
      }
    }
  }
  ~OwnSlot() {
    if (slot != nullptr) slot->thread = 0;
  }
  Slot* slot = nullptr;
};
inline thread_local OwnSlot own_slot;

class InState {  // marks this thread as issuing or waiting while the object lives
 public:
  explicit InState(Standing in) : slot_(own_slot.slot) {
    if (slot_ == nullptr) return;
    outer_ = slot_->in.load(std::memory_order_relaxed);
    slot_->in.store(in, std::memory_order_relaxed);
  }
  InState(const InState&) = delete;
  ~InState() {
    if (slot_ != nullptr) slot_->in.store(outer_, std::memory_order_relaxed);
  }

 private:
  Slot* const slot_;
  int outer_ = kNowhere;
};

struct Key {  // equal for ops of one signature
  int op;
  const void* group;
  int dtype, reduce;  // reduce: the operator; for a p2p op its label, F or B
  int64_t root, tag;
  bool operator==(const Key& o) const {
    return op == o.op && group == o.group && dtype == o.dtype && reduce == o.reduce &&
           root == o.root && tag == o.tag;
  }
};
struct Hash {
  size_t operator()(const Key& k) const {
    size_t h = std::hash<const void*>()(k.group);
    for (int64_t v : {int64_t(k.op), int64_t(k.dtype), int64_t(k.reduce), k.root, k.tag})
      h = h * 1000003 + static_cast<size_t>(v);
    return h;
  }
};
struct Signature {
  Group* group;
  Edge* edge;  // for p2p ops
  uint16_t group_id;
  uint32_t name_id;
  int16_t peer;
};
struct Label {  // label of a message that a pipeline's stage prepared
  char letter = 0;
  int16_t stage = -1, mb = -1;
};

struct Prepared {
  const void* data;
  bool send;
  Label label;
};

struct Follow;
struct Span;
class Device;

struct State {
  State(char* ring, uint64_t capacity, uint64_t next, char* status, char* newest)
      : ring(ring, capacity, next), table(status, newest) {}

  Ring ring;
  Table table;
  Sums sums;
  Looks looks;
  Places places;
  std::atomic<uint32_t> step{0};
  std::atomic<int> level{0};
  std::atomic<bool> closed{false}, slow{false}, probes{false}, gathers{false};
  std::atomic<bool> quick{false};  // no pipeline action needs Python
  std::atomic<int64_t> hook_calls{0}, probe_ns{0}, errors{0};
  std::atomic<int64_t> own_ns{0}, own_calls{0};  // measured cost of all but ops
  std::atomic<bool> gone{false};  // a forked child's copy of the parent's: nothing here counts
  std::atomic<Device*> device{nullptr};  // where ops are timed on a device; never freed
  const int64_t since_ns = now_ns();

  std::shared_mutex signatures_lock;
  std::unordered_map<Key, Signature, Hash> signatures;
  std::atomic<uint64_t> signatures_change{0};

  std::mutex lock;  // guards the following members
  std::vector<Prepared> labels;  // few at a time
  std::atomic<size_t> num_labels{0};
  std::unordered_map<const void*, std::weak_ptr<Follow>> tensors;  // for wait_tensor, by storage
  std::deque<const void*> tensors_by_age;
  std::deque<std::pair<std::shared_ptr<Follow>, c10::intrusive_ptr<c10d::Work>>> polled;
  std::deque<std::pair<Record, int64_t>> slow_ended;  // for watch slow: op and when it ended

  // The label of a message, with the lock held; letter 0: it has none.
  Label label_of(const void* data, bool send, bool take = false) {
    for (Prepared& p : labels) {
      if (p.data != data || p.send != send) continue;
      const Label found = p.label;
      if (take) p = labels.back(), labels.pop_back(), num_labels = labels.size();
      return found;
    }
    return Label{};
  }
  void prepared(const void* data, bool send, Label label) {
    std::lock_guard<std::mutex> guard(lock);
    label_of(data, send, true);
    labels.push_back({data, send, label}), num_labels = labels.size();
  }

  // Each thread caches its latest ones, valid as long as none has changed.
  bool find(const Key& key, Signature& out) {
    struct Recent {
      const State* state = nullptr;
      uint64_t change = 0;
      Key key{};
      Signature known{};
    };
    static thread_local Recent recent[8];
    Recent& own = recent[(Hash()(key) >> 4) & 7];
    const uint64_t change = signatures_change.load(std::memory_order_acquire);
    if (own.state != this || own.change != change || !(own.key == key)) {
      std::shared_lock<std::shared_mutex> guard(signatures_lock);
      const auto at = signatures.find(key);
      if (at == signatures.end()) return false;
      own = Recent{this, change, key, at->second};
    }
    out = own.known;
    return true;
  }

  void keep(const Key& key, const Signature& known) {
    std::unique_lock<std::shared_mutex> guard(signatures_lock);
    if (signatures.size() >= kMaxSignatures) signatures.clear();
    signatures[key] = known, signatures_change += 1;
  }

  // Forget a ProcessGroup that is gone: another may get its address.
  void forget(const void* group) {
    std::unique_lock<std::shared_mutex> guard(signatures_lock);
    std::erase_if(signatures, [&](const auto& item) { return item.first.group == group; });
    signatures_change += 1;
  }
};

// An op between its issue and its completion: numbers only, no tensor, no Work.
struct Follow {
  explicit Follow(State& s) : state(s) { r.kind = kIssue, r.lane = kLaneComm; }
  Follow(const Follow&) = delete;
  ~Follow() {  // its Work is gone without a wait: its end time is not known
    if ((token || open.open) && !state.gone.load(std::memory_order_relaxed)) finish();
  }

  State& state;
  Record r{};
  Open open;           // in the table, unless it is in Python's,
  uint64_t token = 0;  // which knows it by this number
  bool host_waits = true;  // Work.wait returns at the op's completion, not when a stream waits for it
  bool any_source = false;
  bool timed = false;  // its end comes from the device's events
  std::weak_ptr<Span> span;  // on the device, until it has ended there
  std::atomic<bool> has_reporter{false};  // a future or a poll reports its end, not its Work
  std::atomic<bool> waited_for{false};
  std::function<void()> before;  // callback that the Work had for its end: the profiler's

  bool finish() { return token ? state.table.completed(token) : state.table.completed(open); }

  // Note the op's completion; the first caller writes the record. `begin`: on a device, if known.
  void done(int64_t t1, uint16_t source, int64_t begin = 0) {
    if (!finish()) return;
    if (state.slow.load(std::memory_order_relaxed)) {
      std::lock_guard<std::mutex> guard(state.lock);
      if (state.slow_ended.size() < kMaxSlow) state.slow_ended.emplace_back(r, t1);
    }
    const int level = state.level.load(std::memory_order_relaxed);
    if (level > 1) {
      Record d = r;
      d.kind = kDone, d.flags |= source, d.t1 = t1;
      if (source & kDoneDevice) d.flags &= static_cast<uint16_t>(~kTimed);
      state.ring.write(d);
    } else {
      Record summed = r;
      if (begin != 0) summed.t0 = begin;
      state.sums.add(summed, t1);
    }
  }

  // Note the host's wait for the op. Once: further waits find it complete.
  void waited(int64_t t0, int64_t t1, bool failed) {
    if (waited_for.exchange(true)) return;
    if (state.level.load(std::memory_order_relaxed) > 1 && (t1 - t0 >= kShortNs || failed)) {
      Record w = r;
      w.kind = kWait, w.lane = kLaneWait, w.t0 = t0, w.t1 = t1;
      w.step = state.step.load(std::memory_order_relaxed);
      if (failed) w.flags |= kFailed;
      state.ring.write(w);
    }
    if (host_waits || failed) done(t1, kWaited | (failed ? kFailed : 0));
  }
};

// Members that c10d::Work has for itself and subclasses: a function that it calls at its end (torch's
// profiler uses it too), and the lock for it. As part of that function our Follow lives exactly as
// long as the op may be waited for, and is found from the Work without a table.
struct Inside : c10d::Work {
  static std::mutex& lock(c10d::Work& work) { return work.*(&Inside::mutex_); }
  static bool& completed(c10d::Work& work) { return work.*(&Inside::completed_); }
  static std::function<void()>& at_end(c10d::Work& work) {
    return work.*(&Inside::recordFunctionEndCallback_);
  }
};

struct Tied {
  std::shared_ptr<Follow> follow;
  void operator()() const {  // the Work ends, its lock held: nothing here may wait
    Follow& f = *follow;
    if (f.before) f.before();
    // A message ends in its wait (any thread's); others on the backend's worker.
    if (!f.has_reporter && f.host_waits && !f.any_source)
      f.done(now_ns(), f.r.flags & kP2P ? kWaited : kCompleted);
  }
};

// Attach to a Work; never waits for its lock, held at the Work's end. False: it has ended.
inline bool follow_work(c10d::Work& work, const std::shared_ptr<Follow>& follow) {
  std::unique_lock<std::mutex> guard(Inside::lock(work), std::try_to_lock);
  if (!guard || Inside::completed(work)) {
    if (!follow->has_reporter && follow->host_waits) follow->done(now_ns(), kCompleted);
    return false;
  }
  auto& at_end = Inside::at_end(work);
  follow->before = std::move(at_end);
  at_end = Tied{follow};
  return true;
}

// To be kept while the Work is waited for: the Work's end drops its own reference.
template <typename One, typename Other>
std::pair<decltype(One::follow), decltype(Other::follow)> followed_by(c10d::Work& work) {
  std::unique_lock<std::mutex> guard(Inside::lock(work), std::try_to_lock);
  if (!guard || !Inside::at_end(work)) return {};
  if (const auto* found = Inside::at_end(work).target<One>()) return {found->follow, nullptr};
  const auto* found = Inside::at_end(work).target<Other>();
  return {nullptr, found == nullptr ? nullptr : found->follow};
}

}  // namespace pardbg
