// The c10d backend "sim": one gloo moves the data, another the time stamps. As NCCL since torch 2.8,
// an async op has a stream of its own and a Work whose Future is complete at once and holds the end
// event; a sync op runs on the current stream and returns no Work.
#pragma once
#include <map>
#include <thread>

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "kernels.hpp"

namespace sim {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// ---- arguments of ops: one tensor, a list, or a list for each rank

inline at::Tensor host(const at::Tensor& t) { return host_alias(t); }
inline Tensors flat(const at::Tensor& t) { return {t}; }
template <typename T> std::vector<T> host(const std::vector<T>& list) {
  std::vector<T> out;
  for (auto& item : list) out.push_back(host(item));
  return out;
}
template <typename T> Tensors flat(const std::vector<T>& list) {
  Tensors out;
  for (auto& item : list)
    for (auto& t : flat(item)) out.push_back(t);
  return out;
}
inline int64_t num_bytes(const Tensors& ts) {
  int64_t n = 0;
  for (auto& t : ts) n += int64_t(t.numel() * t.element_size());
  return n;
}
inline int64_t comm_cost(int64_t bytes) {
  return settings().comm_default_ns + int64_t(settings().comm_byte_ns * double(bytes));
}

struct SimWork final : c10d::Work {
  Time end;
  c10::Device device;
  Tensors outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  SimWork(int rank, OpType type, Time end, c10::Stream stream, Tensors out)
      : Work(rank, type), end(std::move(end)), device(stream.device()), outputs(std::move(out)) {
    c10::StreamGuard guard(stream);  // its event is the end of what the op's stream has now
    complete(outputs);
  }
  void complete(const Tensors& value) {
    future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device});
    future->markCompleted(c10::IValue(value));
  }
  bool isCompleted() override { return past(end); }
  bool isSuccess() const override { return true; }
  void synchronize() override { block(current_stream(device.index()), end); }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    if (retrieveOpType() == OpType::BARRIER) sim::synchronize(end);
    return true;
  }
  Tensors result() override { return outputs; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
};

// ---- time: when an op ends, settled by a thread for each internal stream of the backend

struct Peer {
  int rank, tag;
  bool send;
};
struct Op {
  Time arrival, end;
  int64_t cost;
  bool everyone;            // a collective
  std::vector<Peer> peers;  // else these
};
inline int64_t& stamp_of(Tensors& t) { return *t[0].mutable_data_ptr<int64_t>(); }
inline Tensors stamp(int64_t at) {
  Tensors t{at::empty({1}, at::kLong)};
  stamp_of(t) = at;
  return t;
}
inline int64_t end_of(c10d::Backend& clock, const Op& op, int size) {
  const int64_t mine = know(op.arrival);
  int64_t start = mine;
  if (op.everyone && size > 1) {
    auto latest = stamp(mine);
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    clock.allreduce(latest, options)->wait();
    return stamp_of(latest) + op.cost;
  }
  std::vector<WorkPtr> sends;
  std::vector<std::pair<WorkPtr, Tensors>> receives;
  for (auto& p : op.peers) {  // the receiver needs the sender's arrival
    auto at = stamp(p.send ? mine : 0);
    if (p.send) sends.push_back(clock.send(at, p.rank, p.tag));
    else receives.emplace_back(clock.recv(at, p.rank, p.tag), at);
  }
  for (auto& [work, theirs] : receives) {
    work->wait();
    start = std::max(start, stamp_of(theirs));
  }
  for (auto& work : sends) work->wait();
  return start + op.cost;
}
struct Line {
  std::mutex lock;
  std::condition_variable changed;
  std::deque<Op> ops;
  std::optional<c10::Stream> stream;
};
inline void settle_ops(std::shared_ptr<Line> line, BackendPtr clock, int size) {
  while (true) {
    std::unique_lock guard(line->lock);
    line->changed.wait(guard, [&] { return !line->ops.empty(); });
    const Op op = std::move(line->ops.front());
    line->ops.pop_front();
    guard.unlock();
    try {
      settle(op.end, end_of(*clock, op, size));
    } catch (const std::exception&) {  // a peer is gone: the op never ends, as on a GPU
    }
  }
}

// ---- gloo's op: who waits for it first does so for all. A transfer between two ranks is over when
// somebody has waited, which a thread does: the program may never touch its tensor again.

struct Moved {
  WorkPtr work;
  std::once_flag once;
  std::atomic<bool> over{false};
  void wait() {
    std::call_once(once, [&] { work->wait(); });
    over = true;
  }
};
using MovedPtr = std::shared_ptr<Moved>;
struct Transfers {
  std::mutex lock;
  std::condition_variable changed;
  std::deque<MovedPtr> open;
};
inline void wait_for_transfers() {
  auto& all = immortal<Transfers>();
  while (true) {
    std::unique_lock guard(all.lock);
    all.changed.wait(guard, [&] { return !all.open.empty(); });
    const MovedPtr oldest = std::move(all.open.front());
    all.open.pop_front();
    guard.unlock();
    try {
      oldest->wait();
    } catch (const std::exception&) {  // its peer is gone
      oldest->over = true;
    }
  }
}
inline void transfers(MovedPtr moved) {
  static const bool begun = (std::thread(wait_for_transfers).detach(), true);
  auto& all = immortal<Transfers>();
  std::lock_guard guard(all.lock);
  if (begun) all.open.push_back(std::move(moved));
  all.changed.notify_one();
}

// ---- the backend

#define SIM_ONE(METHOD, NAME, TYPE, OPTIONS)                                          \
  WorkPtr METHOD(Tensors& ts, const c10d::OPTIONS& o) override {                      \
    return collective(NAME, OpType::TYPE, ts, {}, o.asyncOp,                          \
        [d = data_, ts, o] { auto h = host(ts); return d->METHOD(h, o); });           \
  }
#define SIM_TWO(METHOD, NAME, TYPE, OPTIONS, OUT, IN)                                 \
  WorkPtr METHOD(OUT& out, IN& in, const c10d::OPTIONS& o) override {                 \
    return collective(NAME, OpType::TYPE, flat(out), flat(in), o.asyncOp,             \
        [d = data_, out, in, o] { auto a = host(out); auto b = host(in); return d->METHOD(a, b, o); }); \
  }

class SimBackend final : public c10d::Backend {
  using Start = std::function<void()>;
  struct Batch {
    std::vector<Start> starts;
    std::vector<Peer> peers;
    Tensors outputs;
    int64_t cost = 0;
    bool everyone = false, async = true;
    std::string name;
  };
  BackendPtr data_, clock_;
  std::map<std::string, std::shared_ptr<Line>> lines_;  // "": collectives, batches; "0:1": a pair
  std::optional<Batch> batch_;
  uint64_t sequence_ = 0;

  Line& line(const std::string& key, c10::DeviceIndex device) {
    auto& it = lines_[key];
    if (!it) {
      it = std::make_shared<Line>();
      it->stream = pool_stream(device);
      std::thread(settle_ops, it, clock_, size_).detach();
    }
    return *it;
  }
  // The op on the device: its place on a stream, its truth, its Work.
  WorkPtr place(const std::string& key, OpType type, bool async, Batch op) {
    const auto device = op.outputs.empty() ? current_device() : op.outputs[0].device().index();
    const auto current = current_stream(device);
    auto& l = line(key, device);
    const auto stream = async ? *l.stream : current;
    const auto issued = now();
    if (async) block(stream, mark(current));
    const auto [arrival, end] = hold(stream);
    {
      std::lock_guard guard(lock());
      log({op.name, stream.id(), issued, op.cost, arrival, end});
    }
    {
      std::lock_guard guard(l.lock);
      l.ops.push_back({arrival, end, op.cost, op.everyone, std::move(op.peers)});
      l.changed.notify_one();
    }
    sequence_++;
    if (!async) return {};
    return c10::make_intrusive<SimWork>(rank_, type, end, stream, std::move(op.outputs));
  }
  // gloo's op on aliases; kernels that touch these tensors wait for it (data, not time).
  template <typename Go>
  static Start start(const Tensors& writes, const Tensors& reads, Go go, bool is_p2p = false) {
    std::vector<std::pair<at::Tensor, bool>> touched;
    for (auto& t : writes) touched.emplace_back(t, true);
    for (auto& t : reads) touched.emplace_back(t, false);
    return [touched, go, is_p2p]() mutable {
      if (!settings().blind) for (auto& [t, written] : touched) await_data(t, written);
      auto moved = std::make_shared<Moved>();
      moved->work = go();
      if (!moved->work) return;
      for (auto& [t, written] : touched)
        pend(t.storage(), {bytes_of(t, written), [moved] { return moved->over || moved->work->isCompleted(); },
            [moved] { moved->wait(); }});
      if (is_p2p) transfers(std::move(moved));
    };
  }
  template <typename Go>
  WorkPtr collective(const char* name, OpType type, Tensors out, const Tensors& in, bool async, Go go) {
    const auto cost = comm_cost(std::max(num_bytes(out), num_bytes(in)));
    auto begin = start(out, in, go);
    if (!batch_) {
      auto work = place("", type, async, {{}, {}, out.empty() ? in : out, cost, true, async, name});
      begin();
      return work;
    }
    batch_->starts.push_back(begin);
    batch_->outputs.insert(batch_->outputs.end(), out.begin(), out.end());
    batch_->cost += cost;
    batch_->everyone = true;
    batch_->async = async;
    batch_->name = name;
    return {};
  }
  template <typename Go> WorkPtr p2p(const char* name, OpType type, Tensors& ts, Peer peer, Go go) {
    const auto cost = comm_cost(num_bytes(ts));
    auto begin = peer.send ? start({}, ts, go, true) : start(ts, {}, go, true);
    if (!batch_) {
      const auto [a, b] = std::minmax(rank_, peer.rank);
      auto work = place(std::to_string(a) + ":" + std::to_string(b), type, true,
          {{}, {peer}, ts, cost, false, true, name});
      begin();
      return work;
    }
    batch_->starts.push_back(begin);
    batch_->peers.push_back(peer);
    batch_->outputs.insert(batch_->outputs.end(), ts.begin(), ts.end());
    batch_->cost = std::max(batch_->cost, cost);
    batch_->name = name;
    return {};
  }

 public:
  SimBackend(BackendPtr data, BackendPtr clock, int rank, int size)
      : Backend(rank, size), data_(std::move(data)), clock_(std::move(clock)) {}
  const std::string getBackendName() const override { return "sim"; }
  bool supportsCoalescing() const override { return true; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(std::chrono::milliseconds t) override { data_->setTimeout(t); }

  void startCoalescing() override { batch_.emplace(); }
  WorkPtr endCoalescing() override {
    Batch b = std::move(*batch_);
    batch_.reset();
    if (b.starts.empty()) return {};
    if (b.starts.size() > 1) b.name = "coalesced";
    const auto starts = std::move(b.starts);
    auto work = place("", OpType::COALESCED, b.async, std::move(b));
    if (work) static_cast<SimWork&>(*work).complete({});  // as NCCL's: no tensor, so no event
    for (auto& begin : starts) begin();
    return work;
  }

  SIM_ONE(broadcast, "broadcast", BROADCAST, BroadcastOptions)
  SIM_ONE(allreduce, "all_reduce", ALLREDUCE, AllreduceOptions)
  SIM_ONE(allreduce_coalesced, "all_reduce_coalesced", ALLREDUCE_COALESCED, AllreduceCoalescedOptions)
  SIM_ONE(reduce, "reduce", REDUCE, ReduceOptions)
  SIM_TWO(allgather, "all_gather", ALLGATHER, AllgatherOptions, Lists, Tensors)
  SIM_TWO(_allgather_base, "all_gather_into_tensor", _ALLGATHER_BASE, AllgatherOptions, at::Tensor, at::Tensor)
  SIM_TWO(allgather_into_tensor_coalesced, "all_gather_into_tensor_coalesced", COALESCED, AllgatherOptions, Tensors, Tensors)
  SIM_TWO(reduce_scatter, "reduce_scatter", REDUCE_SCATTER, ReduceScatterOptions, Tensors, Lists)
  SIM_TWO(_reduce_scatter_base, "reduce_scatter_tensor", _REDUCE_SCATTER_BASE, ReduceScatterOptions, at::Tensor, at::Tensor)
  SIM_TWO(reduce_scatter_tensor_coalesced, "reduce_scatter_tensor_coalesced", REDUCE_SCATTER_TENSOR_COALESCED, ReduceScatterOptions, Tensors, Tensors)
  SIM_TWO(gather, "gather", GATHER, GatherOptions, Lists, Tensors)
  SIM_TWO(scatter, "scatter", SCATTER, ScatterOptions, Tensors, Lists)
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& os, std::vector<int64_t>& is,
      const c10d::AllToAllOptions& o) override {
    return collective("all_to_all_single", OpType::ALLTOALL_BASE, {out}, {in}, o.asyncOp,
        [d = data_, out, in, os, is, o]() mutable {
          auto a = host(out), b = host(in);
          return d->alltoall_base(a, b, os, is, o);
        });
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {  // as NCCL's, the host waits for it
    place("", OpType::BARRIER, false, {{}, {}, {}, comm_cost(0), true, false, "barrier"});
    data_->barrier({})->wait();
    auto end = mark(current_stream());
    if (o.asyncOp) return c10::make_intrusive<SimWork>(rank_, OpType::BARRIER, end, current_stream(), Tensors{});
    synchronize(end);
    return {};
  }
  WorkPtr send(Tensors& ts, int dst, int tag) override {
    return p2p("send", OpType::SEND, ts, {dst, tag, true},
        [d = data_, ts, dst, tag] { auto h = host(ts); return d->send(h, dst, tag); });
  }
  WorkPtr recv(Tensors& ts, int src, int tag) override {
    return p2p("recv", OpType::RECV, ts, {src, tag, false},
        [d = data_, ts, src, tag] { auto h = host(ts); return d->recv(h, src, tag); });
  }
};

}  // namespace sim
