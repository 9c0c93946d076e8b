// Data that the hot path writes: the record ring, the op table and the rank's status block.
//
// The same facts as in pardbg_agent/ring.py and op_table.py, kept where both C++ (without the
// GIL) and Python can number and record ops. Layouts are pardbg_agent/wire.py's; a test compares.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace pardbg {

struct Record {  // wire.RECORD
  uint8_t kind, lane;
  uint16_t flags;
  uint32_t name_id;
  int64_t t0, t1;
  uint32_t step, seq;
  uint16_t group_id;
  int16_t stage, mb, peer;
  int64_t a, b;
  uint64_t mark;
};
static_assert(sizeof(Record) == 64);

constexpr uint8_t kAction = 1, kIssue = 2, kDone = 3, kWait = 4, kPart = 15;
constexpr uint8_t kLaneCompute = 2, kLaneComm = 3, kLaneWait = 4;
constexpr uint16_t kP2P = 2, kSend = 4, kCompleted = 8, kWaited = 16, kPolled = 32, kDoneDevice = 64,
                   kFailed = 128, kAsync = 256, kOtherThread = 4096, kTimed = 8192;
constexpr uint16_t kNoGroup = 0xFFFF;
constexpr size_t kMaxParts = 64;

inline int64_t now_ns() {  // time.monotonic_ns
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

// Writing side of ring.Ring. Python's writer takes its indices here too.
class Ring {
 public:
  Ring(char* data, uint64_t capacity, uint64_t next)
      : data_(data), mask_(capacity - 1), next_(next) {}

  void start(uint64_t next) { next_ = next; }

  uint64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  void write(Record r) {
    const uint64_t i = take();
    char* slot = data_ + ((i & mask_) << 6);
    auto* mark = reinterpret_cast<std::atomic<uint64_t>*>(slot + offsetof(Record, mark));
    mark->store(0, std::memory_order_relaxed);  // unfinished: no valid mark
    std::atomic_thread_fence(std::memory_order_release);
    std::memcpy(slot, &r, offsetof(Record, mark));
    mark->store(i + 1, std::memory_order_release);  // last: the commit
  }

 private:
  char* data_;
  const uint64_t mask_;
  std::atomic<uint64_t> next_;
};

struct Group {
  std::string key;
  bool calls;  // not a process group: numbers calls that may block
  std::atomic<uint32_t> next[2] = {0, 0};  // number of the next collective, p2p op
  int64_t issued = -1;  // collectives issued; -1: none yet. Under the table's lock
  std::vector<int16_t> ranks;  // global ranks by group rank; once known
};

struct Edge {
  Group* group;
  int peer;
  int64_t tag;
  bool send;
  int64_t next = 0, issued = 0;
};

struct Open {  // op_table.Issued; a link in the list of open ops, oldest first
  Group* group = nullptr;
  uint16_t group_id = 0;
  const char* op = "";  // lives as long as the process
  uint32_t seq = 0;
  bool p2p = false, send = false;
  int peer = -1;
  int64_t tag = 0, order = -1;
  uint32_t name_id = 0;
  int64_t t0 = 0, a = 0, b = 0;  // a, b: bytes in and out
  bool open = false;
  Open *older = nullptr, *newer = nullptr;
};

// op_table.OpTable. Groups and edges live as long as the process: few, and others point to them.
class Table {
 public:
  Table(char* status, char* newest) : status_(status), status_newest_(newest) {}

  Group* group(const std::string& key) {
    std::lock_guard<std::mutex> lock(lock_);
    auto& found = groups_[key];
    if (!found) {
      found = std::make_unique<Group>();
      found->key = key;
      found->calls = key.rfind("calls", 0) == 0;  // wire.CALLS
    }
    return found.get();
  }

  Edge* edge(Group* group, int peer, int64_t tag, bool send) {
    std::lock_guard<std::mutex> lock(lock_);
    return edge_of(group, peer, tag, send);
  }

  // Note an op's issue to the backend. `edge` of a p2p op; `order` >= 0 if it is known already. The
  // op is the caller's, and must not move until `completed`.
  uint64_t issued(Open& op, Edge* edge) {
    std::lock_guard<std::mutex> lock(lock_);
    op.order = count(op.group, op.seq, edge, op.order);
    op.older = newest_open_, op.open = true;
    (newest_open_ == nullptr ? oldest_open_ : newest_open_->newer) = &op;
    newest_open_ = &op, num_open_ += 1;
    show();
    if (num_open_ > 1) show(op, status_newest_);
    return ++newest_;
  }

  // Note the issue of an op that Python numbers: this table owns it, and a token identifies it.
  uint64_t issued_by_python(const Open& op, const std::string& name, Edge* edge) {
    auto kept = std::make_unique<Open>(op);
    {
      std::lock_guard<std::mutex> lock(lock_);
      kept->op = words_.insert(name).first->c_str();
    }
    const uint64_t token = issued(*kept, edge);
    std::lock_guard<std::mutex> lock(lock_);
    pythons_.emplace(token, std::move(kept));
    return token;
  }

  // Only count an op: numbers must equal the other ranks'.
  int64_t passed(Group* group, uint32_t seq, Edge* edge, int64_t order) {
    std::lock_guard<std::mutex> lock(lock_);
    return count(group, seq, edge, order);
  }

  // Note an op's completion. False: it was complete already.
  bool completed(Open& op) {
    std::lock_guard<std::mutex> lock(lock_);
    return close(op);
  }

  bool completed(uint64_t token) {
    std::lock_guard<std::mutex> lock(lock_);
    const auto at = pythons_.find(token);
    if (at == pythons_.end()) return false;
    close(*at->second);
    pythons_.erase(at);
    return true;
  }

  void idle() {
    std::lock_guard<std::mutex> lock(lock_);
    show();
  }

  uint64_t newest() const { return newest_; }

  template <typename F>
  void look(F&& f) {  // f(groups, edges in order of first use)
    std::lock_guard<std::mutex> lock(lock_);
    f(groups_, edges_);
  }

  std::vector<Open> open() {  // oldest first
    std::lock_guard<std::mutex> lock(lock_);
    std::vector<Open> found;
    for (const Open* op = oldest_open_; op != nullptr; op = op->newer) found.push_back(*op);
    return found;
  }

  uint64_t revision() {  // op_table.OpTable.revision
    std::lock_guard<std::mutex> lock(lock_);
    return 2 * newest_ - num_open_;
  }

  int64_t num_issued(const std::string& key) {
    std::lock_guard<std::mutex> lock(lock_);
    const auto at = groups_.find(key);
    return at == groups_.end() ? 0 : std::max<int64_t>(0, at->second->issued);
  }

 private:
  Edge* edge_of(Group* group, int peer, int64_t tag, bool send) {
    Edge*& found = edge_by_[{group, peer, tag, send}];
    if (found == nullptr) found = &edges_.emplace_back(Edge{group, peer, tag, send});
    return found;
  }

  int64_t count(Group* group, uint32_t seq, Edge* edge, int64_t order) {
    if (edge == nullptr) {
      group->issued = int64_t(seq) + 1;
      return order;
    }
    if (order < 0) order = edge->next++;
    edge->issued = order + 1;
    return order;
  }

  void show() {  // show the oldest open op
    static const Open nothing{nullptr, kNoGroup};
    show(oldest_open_ == nullptr ? nothing : *oldest_open_, status_);
  }

  // wire.STATUS_OP, "<IIHhIqI4xqq".
  void show(const Open& op, char* at) const {
    const auto peer = static_cast<int16_t>(op.peer);
    const uint32_t flags = op.send ? kP2P | kSend : op.p2p ? kP2P : 0;
    char block[48] = {};
    std::memcpy(block, &op.name_id, 4), std::memcpy(block + 4, &op.seq, 4);
    std::memcpy(block + 8, &op.group_id, 2), std::memcpy(block + 10, &peer, 2);
    std::memcpy(block + 12, &flags, 4), std::memcpy(block + 16, &op.t0, 8);
    std::memcpy(block + 24, &num_open_, 4);
    std::memcpy(block + 32, &op.a, 8), std::memcpy(block + 40, &op.b, 8);
    std::memcpy(at, block, sizeof block);
  }

  bool close(Open& op) {
    if (!op.open) return false;
    op.open = false, num_open_ -= 1;
    (op.older == nullptr ? oldest_open_ : op.older->newer) = op.newer;
    (op.newer == nullptr ? newest_open_ : op.newer->older) = op.older;
    show();
    return true;
  }

  std::mutex lock_;
  char *status_, *status_newest_;
  Open *oldest_open_ = nullptr, *newest_open_ = nullptr;
  uint32_t num_open_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Open>> pythons_;  // by token
  std::unordered_set<std::string> words_;
  std::atomic<uint64_t> newest_{0};
  std::unordered_map<std::string, std::unique_ptr<Group>> groups_;
  std::deque<Edge> edges_;
  std::map<std::tuple<Group*, int, int64_t, bool>, Edge*> edge_by_;
};

// Level summary (op_table.Sums): completed ops of a step, by kind.
class Sums {
 public:
  using Key = std::tuple<uint32_t, uint16_t, uint16_t>;  // name, group, P2P and SEND flags
  using Sum = std::tuple<int64_t, int64_t, int64_t>;     // number, bytes, ns

  void add(const Record& r, int64_t t1) {
    std::lock_guard<std::mutex> lock(lock_);
    auto& [number, bytes, ns] = sums_[{r.name_id, r.group_id, r.flags & (kP2P | kSend)}];
    number += 1, bytes += std::max(r.a, r.b), ns += t1 - r.t0;
  }

  bool some() {
    std::lock_guard<std::mutex> lock(lock_);
    return !sums_.empty();
  }

  std::map<Key, Sum> take() {
    std::lock_guard<std::mutex> lock(lock_);
    return std::exchange(sums_, {});
  }

 private:
  std::mutex lock_;
  std::map<Key, Sum> sums_;
};

}  // namespace pardbg
