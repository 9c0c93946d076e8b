// Inputs on a device that are looked at: Chosen in hooks/ops/late_inputs.py, without Python.

#pragma once

#include <mutex>
#include <unordered_map>

#include "scan.hpp"
#include "table.hpp"

namespace pardbg {

constexpr double kLateShare = 0.002;  // late_inputs.SHARE; below MAX_SENDS, MAX_EVERY
constexpr uint32_t kMaxSends = 32, kMaxEvery = 64;

// Whether inputs of a reduction, by its number in wire.REDUCE, are looked at: late_inputs.SUMS.
constexpr bool sums_up(int reduce) { return reduce == 0 || reduce == 1 || reduce == 8; }

inline int64_t thread_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

class Looks {
 public:
  std::atomic<bool> captured{false};  // a graph has captured ops: its replays are not seen

  // Count an op; return whether its input is to be looked at.
  bool due(uint32_t step, const Group* group, bool send) {
    std::lock_guard<std::mutex> guard(lock_);
    if (step_ != step) {
      step_ = step, num_sends_ = 0;
      const double allowed = kFreeNs + kLateShare * static_cast<double>(now_ns() - since_ns_);
      if (step % every_ == 0 && static_cast<double>(spent_ns_) > allowed && every_ < kMaxEvery) every_ *= 2;
    }
    const bool now = step % every_ == 0;
    if (send) return ++num_sends_ <= kMaxSends && now;
    Count& of = counts_[group];
    if (of.step != step) of = {step, 0, of.number};
    return (++of.number == 1 || of.number == of.before) && now;
  }
  void spend(int64_t ns) {
    std::lock_guard<std::mutex> guard(lock_);
    spent_ns_ += ns;
  }
  // In every how many steps inputs are looked at.
  uint32_t every() {
    std::lock_guard<std::mutex> guard(lock_);
    return every_;
  }

 private:
  struct Count {
    uint32_t step = 0, number = 0, before = 0;  // sums in the step, and in the step with sums before
  };
  std::mutex lock_;  // guards the following members
  uint32_t step_ = ~0u, every_ = 1, num_sends_ = 0;
  int64_t spent_ns_ = 0;
  const int64_t since_ns_ = now_ns();
  std::unordered_map<const Group*, Count> counts_;
};

}  // namespace pardbg
