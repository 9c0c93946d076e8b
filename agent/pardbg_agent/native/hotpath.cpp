// The agent's hot path: every c10d op recorded in the ring without Python, and without the GIL.
//
// A kernel at BackendSelect looks up the signature of this kind of op on this group, numbers the op,
// goes on to the backend, and writes OP_ISSUE; completion is state.hpp's. Python decides before the
// op is issued (hooks/ops/native_way) where a gate is closed or watched, the kind of op is new, a
// tensor has no plain storage, or values are not finite. Ops on a device are timed there (device.hpp).
//
// The frequent ops have kernels with their own C++ signatures: boxing of arguments and result would
// double the cost. Where torch's signatures differ, and for the other ops, a boxed kernel does.

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <string_view>

#include "device.hpp"
#include "held.hpp"
#include "scan.hpp"
#include "sketch.hpp"

namespace py = pybind11;
using c10::IValue;
using torch::jit::Stack;

namespace pardbg {
namespace {

struct Spec {  // a row of pardbg_agent.tables.c10d_ops: places of arguments, -1: none
  int number;  // of the row
  int group, root, tag, async_op, reduce;
  int in, out;  // input and output tensors; equal: in place
  bool p2p, send, future, functional;
  bool probed;   // NaN in its input spreads
  bool gathers;  // input goes to others unchanged
  bool parts;    // several numbers give the bytes to each rank
  std::string name, op;
};
// The table, set once by Python. Never freed: open ops keep names of it.
std::vector<Spec>& specs() {
  static auto* const all = new std::vector<Spec>;
  return *all;
}
constexpr auto kKey = c10::DispatchKey::BackendSelect;

std::atomic<State*> current{nullptr};  // for this process's Core; never freed: ops still point to it
std::atomic<bool> agent_off{false};    // in this process
py::object* ask_python = nullptr;      // native_way.ask
py::object* slow_waited = nullptr;     // native_way._waited, for watch slow

// Flag.OTHER_THREAD of this thread's ops, decided by Python at the first one.
thread_local bool thread_known = false;
thread_local uint16_t thread_flag = 0;

struct Tensors {  // tensors of one side of an op
  int64_t bytes = 0;
  const at::Tensor* first = nullptr;
  bool plain = true;  // ordinary tensors
  bool host = true;   // in host memory

  void add(const at::Tensor& t) {
    if (!t.defined()) return;
    if (first == nullptr) first = &t;
    host &= t.is_cpu();
    if (t.is_meta() || t.layout() != c10::kStrided || t.is_nested() ||
        t.key_set().has(c10::DispatchKey::Python))
      plain = false;
    else
      bytes += static_cast<int64_t>(t.nbytes());
  }
  void add(at::TensorList list) {
    for (const at::Tensor& t : list) add(t);
  }
  void add(const IValue& v) {
    if (v.isTensor()) {
      add(v.toTensor());
    } else if (v.isList()) {
      for (const IValue& part : v.toListRef()) add(part);
    }
  }
};

struct Call {  // arguments of an op
  Tensors in, out;
  c10d::ProcessGroup* group = nullptr;
  int reduce = -1;
  int64_t root = -1, tag = 0;
  bool async = true;

  template <typename T>
  void tensors(const Spec& spec, int place, const T& t) {
    if (place == spec.in || (spec.in < 0 && place == 0)) in.add(t);  // a barrier's has no bytes
    else if (place == spec.out) out.add(t);
  }
  void read(const Spec& spec, int place, const at::Tensor& t) { tensors(spec, place, t); }
  void read(const Spec& spec, int place, at::TensorList list) { tensors(spec, place, list); }
  void read(const Spec&, int, const c10::intrusive_ptr<c10d::ProcessGroup>& g) { group = g.get(); }
  void read(const Spec&, int, const c10::intrusive_ptr<c10d::ReduceOp>& r) { reduce = r->op_; }
  void read(const Spec&, int, const std::optional<at::Tensor>&) {}
  void read(const Spec& spec, int place, bool v) {
    if (place == spec.async_op) async = v;
  }
  void read(const Spec& spec, int place, int64_t v) {
    if (place == spec.root) root = v;
    else if (place == spec.tag) tag = v;
  }
};

template <typename T>
T* object(const IValue& v) {  // an object, according to the schema
  return static_cast<T*>(v.toObjectRef().getSlot(0).toCapsule().get());
}

Call read_boxed(const Spec& spec, const IValue* args, size_t num) {
  Call c;
  c.in.add(args[std::max(0, spec.in)]);  // a barrier's has no bytes
  if (spec.out != spec.in) c.out.add(args[spec.out]);
  c.group = object<c10d::ProcessGroup>(args[spec.group]);
  if (spec.reduce >= 0) c.reduce = object<c10d::ReduceOp>(args[spec.reduce])->op_;
  if (spec.root >= 0) c.root = args[spec.root].toInt();
  if (spec.tag >= 0) c.tag = args[spec.tag].toInt();
  const auto flag = static_cast<size_t>(spec.async_op);  // absent before torch 2.8: counts as true
  if (spec.async_op >= 0 && flag < num && args[flag].isBool()) c.async = args[flag].toBool();
  return c;
}

template <typename... Args>
Call read_typed(const Spec& spec, const Args&... args) {
  Call c;
  int place = 0;
  (c.read(spec, place++, args), ...);
  return c;
}

// Return the device that times ops on this tensor's; null: Python has to decide whether it can.
Device* device_of(const State& s, const at::Tensor& t) {
  Device* device = s.device.load(std::memory_order_acquire);
  return device != nullptr && device->is(t.device()) ? device : nullptr;
}

struct Issue {  // state of an op from before its issue until it is followed
  std::shared_ptr<Follow> follow;  // null: it has no record
  SpanPtr span;                    // for an op that is timed on a device
  std::optional<c10::Device> on;   // device of its tensors
  bool captured = false;           // captured into a graph, by the device's stream
  std::vector<const void*> outs;   // storages of a functional collective's output
};

// Have Python wait at the gate, and number and name the op. Leaves `c.follow` null for an op
// without a record. Raises KeyboardInterrupt and the like only.
void ask(const Spec& spec, const std::vector<IValue>& args, Key key, bool learn, std::optional<bool> look, Issue& c) {
  py::gil_scoped_acquire gil;
  if (ask_python == nullptr) return;
  const auto group = args[spec.group].toCustomClass<c10d::ProcessGroup>();
  py::list given(args.size());
  for (size_t i = 0; i < args.size(); i++)
    given[i] = int(i) == spec.group ? py::none() : torch::jit::toPyObject(args[i]);
  const py::object fields = (*ask_python)(spec.number, py::cast(group), reinterpret_cast<uintptr_t>(key.group),
                                  spec.p2p ? -1 : key.reduce, look, given);
  State* s = current.load();
  if (fields.is_none() || s == nullptr) return;
  const py::tuple op = fields.cast<py::tuple>();
  auto follow = std::make_shared<Follow>(*s);
  Record& r = follow->r;
  follow->token = op[0].cast<uint64_t>(), r.name_id = op[1].cast<uint32_t>();
  r.t0 = op[2].cast<int64_t>(), r.step = op[3].cast<uint32_t>(), r.seq = op[4].cast<uint32_t>();
  r.group_id = op[5].cast<uint16_t>(), r.flags = op[6].cast<uint16_t>();
  r.stage = op[7].cast<int16_t>(), r.mb = op[8].cast<int16_t>(), r.peer = op[9].cast<int16_t>();
  r.a = op[10].cast<int64_t>(), r.b = op[11].cast<int64_t>();
  follow->host_waits = op[12].cast<bool>();
  Group* known = follow->open.group = s->table.group(op[13].cast<std::string>());
  if (known->ranks.empty()) known->ranks = op[14].cast<std::vector<int16_t>>();
  c.follow = follow;
  thread_known = true, thread_flag = r.flags & kOtherThread;
  if (!learn) return;
  Edge* edge = spec.p2p ? s->table.edge(known, r.peer, key.tag, spec.send) : nullptr;
  s->keep(key, Signature{known, edge, r.group_id, r.name_id, r.peer});
}

// Number the op before it goes to the backend. `boxed` returns its arguments for Python.
template <typename Boxed>
void begin(const Spec& spec, const Call& op, Boxed&& boxed, Issue& c) {
  State* s = current.load(std::memory_order_acquire);
  if (s == nullptr && agent_off.load(std::memory_order_relaxed)) return;
  const Tensors& in = op.in;
  const bool plain = in.plain && op.out.plain, host = in.host && op.out.host;
  // Only the root of a scatter has an input.
  const at::Tensor* first = in.first != nullptr ? in.first : op.out.first;
  if (first != nullptr) c.on = first->device();
  Key key{spec.number, op.group, first == nullptr ? -1 : int(first->scalar_type()), op.reduce, op.root,
          op.tag};
  const int level = s == nullptr ? 0 : s->level.load(std::memory_order_relaxed);
  Label label;
  const void* data = nullptr;
  if (spec.p2p && level > 0 && s->num_labels.load(std::memory_order_relaxed) && plain &&
      in.first != nullptr) {
    data = in.first->data_ptr();
    std::lock_guard<std::mutex> guard(s->lock);
    label = s->label_of(data, spec.send);
    if (label.letter) key.reduce = label.letter;
  }
  Signature known;
  const bool simple = s != nullptr && plain && (host || device_of(*s, *first) != nullptr) &&
                      (thread_known || level == 0);
  const bool found = simple && s->find(key, known);
  const bool look = found && level > 1 && !host && in.first != nullptr &&
                    (spec.send ? in.bytes > 0 : sums_up(op.reduce) && in.bytes >= kLeastBytes) &&
                    s->probes.load(std::memory_order_relaxed) &&
                    s->looks.due(s->step.load(std::memory_order_relaxed), known.group, spec.send);
  if (!found || look || (level > 0 && s->closed.load(std::memory_order_acquire)) ||
      (level > 1 && host && spec.probed && in.first != nullptr &&
       (spec.gathers ? s->gathers : s->probes).load(std::memory_order_relaxed) &&
       !usual(*in.first, in.bytes, spec.reduce < 0, spec.gathers,
              s->step.load(std::memory_order_relaxed) % kEvery == 0, s->probe_ns, s->since_ns))) {
    const int64_t t0 = look ? thread_ns() : 0;
    ask(spec, boxed(), key, plain, found ? std::optional(look) : std::nullopt, c);
    if (look) s->looks.spend(thread_ns() - t0);
    return;
  }
  const uint32_t seq = known.group->next[spec.p2p].fetch_add(1, std::memory_order_relaxed);
  if (level == 0) {  // numbers must equal the other ranks'
    s->table.passed(known.group, seq, known.edge, -1);
    return;
  }
  if (label.letter) {
    std::lock_guard<std::mutex> guard(s->lock);
    s->label_of(data, spec.send, true);
  }
  c.follow = std::make_shared<Follow>(*s);
  c.follow->host_waits = host;
  Record& r = c.follow->r;
  r.seq = seq;
  if (spec.in >= 0) r.a = in.bytes, r.b = spec.out == spec.in ? in.bytes : op.out.bytes;
  r.name_id = known.name_id, r.group_id = known.group_id, r.peer = known.peer;
  r.stage = label.stage, r.mb = label.mb;
  r.step = s->step.load(std::memory_order_relaxed);
  r.flags = thread_flag | (op.async ? kAsync : 0) | (spec.p2p ? kP2P : 0) | (spec.send ? kSend : 0);
  r.t0 = now_ns();
  Open& open = c.follow->open;
  open.group = known.group, open.group_id = r.group_id, open.op = spec.op.c_str(), open.seq = seq;
  open.p2p = spec.p2p, open.send = spec.send, open.peer = r.peer, open.tag = op.tag;
  open.name_id = r.name_id, open.t0 = r.t0, open.a = r.a, open.b = r.b;
  s->table.issued(open, known.edge);
  s->hook_calls.fetch_add(1, std::memory_order_relaxed);
}

// Time the op's arrival on the device: when the current stream gets there.
void arrives(Issue& c) {
  Follow& f = *c.follow;
  State& s = f.state;
  Device* device = s.device.load(std::memory_order_acquire);
  if (f.host_waits || device == nullptr || !c.on || !device->is(*c.on)) return;
  // At level summary, too: else its Work would be polled, and held with the op's memory.
  c.span = device->begin(f.r.t0, c.follow);
  if (c.span) f.timed = true, f.r.flags |= kTimed, f.span = c.span;
  else if ((c.captured = device->capturing())) s.looks.captured = true;
  s.own_ns += now_ns() - f.r.t0;
}

// Have the device report the op's end. `t0`: now.
void end_span(const SpanPtr& span, c10d::Work* work, int64_t t0) {
  Follow& f = *span->op;
  Device& device = span->device;
  // Pairs have streams of their own in the backend; a group has one for all else.
  const int peer = f.r.flags & kP2P ? f.r.peer : -1;
  f.timed = work == nullptr ? device.end(span) : device.end_with(span, *work, f.r.group_id, peer);
  f.state.own_ns += now_ns() - t0;
}

// Have the device tell when the current stream reaches a wait for the asynchronous op. Return now.
int64_t stands(Follow& f) {
  const int64_t t0 = now_ns();
  if (!f.timed || !(f.r.flags & kAsync) || f.r.flags & kP2P || f.waited_for.load()) return t0;
  Device* device = f.state.device.load(std::memory_order_acquire);
  if (device == nullptr || f.state.level.load(std::memory_order_relaxed) < 2) return t0;
  device->stands(f, t0);
  const int64_t t1 = now_ns();
  f.state.own_ns += t1 - t0;
  return t1;
}

// Ops on a device between a backend's group start and end, which have one Work.
struct Batch {
  std::vector<SpanPtr> timed;
  std::vector<std::shared_ptr<Follow>> polled;  // ops that are not timed

  ~Batch() {  // its Work is gone, or there is none: the end times are not known
    for (const SpanPtr& span : timed) {
      span->device.drop(span), span->op->timed = false;
      if (!span->op->state.gone.load(std::memory_order_relaxed)) span->op->finish();
    }
  }
  // End the ops at the current stream's next work, which comes after them.
  void ended(bool by_wait) {
    for (const SpanPtr& span : std::exchange(timed, {})) {
      span->by_wait = by_wait, end_span(span, nullptr, now_ns());
      if (!span->op->timed) span->op->finish();
    }
  }
};
thread_local std::shared_ptr<Batch> batch;

struct TiedBatch {  // like Tied; for a Work whose Future, without tensors, has no end event (NCCL)
  std::shared_ptr<Batch> follow;
  std::function<void()> before;
  void operator()() const {
    if (before) before();
  }
};

// Have a wait for the Work report the end of these ops.
void end_by_wait(const std::shared_ptr<Batch>& ops, c10d::Work& work) {
  std::unique_lock<std::mutex> guard(Inside::lock(work), std::try_to_lock);
  if (!guard || ops->timed.empty()) return;
  auto& at_end = Inside::at_end(work);
  at_end = TiedBatch{ops, std::move(at_end)};
}

void poll_later(const std::shared_ptr<Follow>& follow, const c10::intrusive_ptr<c10d::Work>& work) {
  State& s = follow->state;
  follow->has_reporter = true;
  std::lock_guard<std::mutex> guard(s.lock);
  if (s.polled.size() >= kMaxPolled) {
    s.polled.front().first->finish();
    s.polled.pop_front();
  }
  s.polled.emplace_back(follow, work);
}

// Note the issue of the batch: a wait for its Work reports the end of all of its ops.
void batch_issued(const py::object& object) {
  const auto ops = std::exchange(batch, nullptr);
  if (!ops) return;
  if (object.is_none()) {  // the ops are on the current stream
    for (const auto& follow : ops->polled) follow->finish();
    return ops->ended(false);
  }
  const auto work = object.cast<c10::intrusive_ptr<c10d::Work>>();
  for (const auto& follow : ops->polled) poll_later(follow, work);
  end_by_wait(ops, *work);
}

// Drop the batch, which is not issued: its ops will not end.
void batch_refused() {
  if (const auto ops = std::exchange(batch, nullptr))
    for (const auto& follow : ops->polled) follow->finish();
}

// Bytes per rank on one side of an all_to_all, as in op_arguments.bytes_per_rank.
std::vector<int64_t> parts_of(const IValue& tensors, const IValue& split, size_t num) {
  std::vector<int64_t> parts;
  if (tensors.isTensor()) {
    const at::Tensor& t = tensors.toTensor();
    const auto bytes = static_cast<int64_t>(t.nbytes());
    const auto rows = split.toIntVector();
    const int64_t row = bytes / std::max<int64_t>(1, t.dim() > 0 ? t.size(0) : 1);
    if (rows.empty()) parts.assign(num, bytes / static_cast<int64_t>(num));
    for (const int64_t n : rows) parts.push_back(n * row);
  } else {
    for (const IValue& part : tensors.toListRef())
      parts.push_back(static_cast<int64_t>(part.toTensor().nbytes()));
  }
  return parts;
}

// Write the bytes of an all_to_all to and from each rank, like issue.tell_parts.
void record_parts(const Spec& spec, const IValue* args, Follow& f) {
  const auto& ranks = f.open.group->ranks;
  const size_t num = ranks.size(), own = object<c10d::ProcessGroup>(args[spec.group])->getRank();
  const auto sent = parts_of(args[spec.in], args[4], num), back = parts_of(args[spec.out], args[3], num);
  if (sent.size() != num || back.size() != num || num > kMaxParts) return;
  Record r = f.r;
  r.kind = kPart, r.flags = 0, r.stage = r.mb = -1, r.t1 = r.t0;
  for (size_t i = 0; i < num; i++) {
    r.peer = ranks[i], r.a = sent[i], r.b = back[i];
    if ((r.a != 0 || r.b != 0) && i != own && r.peer >= 0) f.state.ring.write(r);
  }
}

// Remember a functional collective by its output tensors: its wait names one of them.
void expect_waits(State& s, const std::vector<const void*>& outs, const std::shared_ptr<Follow>& follow) {
  std::lock_guard<std::mutex> guard(s.lock);
  for (const void* data : outs) {
    if (s.tensors.insert_or_assign(data, follow).second) s.tensors_by_age.push_back(data);
    if (s.tensors_by_age.size() > kMaxTensors) {
      s.tensors.erase(s.tensors_by_age.front());
      s.tensors_by_age.pop_front();
    }
  }
}

// Record the op as issued, and follow it to its completion.
void issued(const Spec& spec, Issue& c, const c10::intrusive_ptr<c10d::Work>& work) {
  Follow& f = *c.follow;
  State& s = f.state;
  Record& r = f.r;
  r.t1 = now_ns();
  const bool full = s.level.load(std::memory_order_relaxed) > 1;
  if (full) s.ring.write(r);
  if (c.captured) {  // it ends with the call, and its Work must not be asked
    full ? f.done(r.t1, 0) : static_cast<void>(f.finish());
    return;
  }
  if (!f.host_waits && nesting != nullptr && nesting->coalescing) {
    if (!batch) batch = std::make_shared<Batch>();
    c.span ? batch->timed.push_back(c.span) : batch->polled.push_back(c.follow);
    return;
  }
  if (c.span && work && !c.span->device.waits_beside) {
    const auto alone = std::make_shared<Batch>();
    alone->timed.push_back(std::exchange(c.span, nullptr));
    return end_by_wait(alone, *work);
  }
  if (c.span) end_span(c.span, work.get(), r.t1);
  if (!work) {  // the backend has made the stream wait already and returns no Work
    if (!f.timed) f.finish();
    return;
  }
  f.any_source = spec.p2p && spec.root < 0;
  if (f.timed) {
    f.has_reporter = true;
  } else if (!f.host_waits) {
    poll_later(c.follow, work);
  } else if (spec.future) {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    try {
      future = work->getFuture();
    } catch (const std::exception&) {  // no future: the Work's end or wait reports
    }
    if (future && future->completed() && !future->hasError()) {
      f.done(r.t1, kCompleted);
      return;
    }
    if (future) {
      f.has_reporter = true;
      future->addCallback([follow = c.follow](c10::ivalue::Future& ended) {
        follow->done(now_ns(), ended.hasError() ? kCompleted | kFailed : kCompleted);
      });
    }
  }
  if (follow_work(*work, c.follow) && !c.outs.empty()) expect_waits(s, c.outs, c.follow);
}

void record_refusal(Follow& f) {
  f.finish();
  f.r.flags = (f.r.flags | kFailed) & ~kTimed, f.r.t1 = now_ns();
  if (f.state.level.load() > 1) f.state.ring.write(f.r);
}

// Issue an op exactly once whatever the hook does, with unchanged exceptions. `look`
// runs before, `call` issues, `work_of` finds the Work in the result.
template <typename Look, typename Go, typename WorkOf>
auto around(const Spec& spec, Look&& look, Go&& call, WorkOf&& work_of) {
  Issue c;
  try {
    look(c);
  } catch (py::error_already_set&) {
    throw;  // KeyboardInterrupt at a gate
  } catch (const std::exception&) {
    if (State* s = current.load()) s->errors += 1;
  }
  if (!c.follow) return call();
  arrives(c);
  if (c.follow->r.flags & kAsync) c.follow->state.places.note(c.follow->r.t0);
  auto result = [&] {
    try {
      const InState issuing(kIssues);
      return call();
    } catch (...) {
      if (c.span) c.span->device.drop(c.span);
      record_refusal(*c.follow);
      throw;
    }
  }();
  try {
    issued(spec, c, work_of(result));
  } catch (const std::exception&) {
    c.follow->state.errors += 1;
    c.follow->finish();  // nothing else reports its end
  }
  return result;
}

// Key of torch's own registry of such Works: empty tensors have no data, but a storage each.
const void* storage_of(const at::Tensor& t) { return t.storage().unsafeGetStorageImpl(); }
void outputs(const at::Tensor& t, std::vector<const void*>& found) {
  if (t.has_storage()) found.push_back(storage_of(t));
}
void outputs(at::TensorList list, std::vector<const void*>& found) {
  for (const at::Tensor& t : list) outputs(t, found);
}
void outputs(const IValue& v, std::vector<const void*>& found) {
  if (v.isTensor()) outputs(v.toTensor(), found);
  if (v.isTensorList())
    for (const IValue& part : v.toListRef()) outputs(part.toTensor(), found);
}

template <typename Result>
const c10::intrusive_ptr<c10d::Work>& work_in(const Result& result) {
  if constexpr (std::is_same_v<Result, c10::intrusive_ptr<c10d::Work>>)
    return result;
  else
    return std::get<1>(result);
}

constexpr auto kAfter = c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);

class BoxedKernel final : public c10::OperatorKernel {
 public:
  explicit BoxedKernel(const Spec& spec) : spec_(spec) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const Spec& spec = spec_;
    around(
        spec,
        [&](Issue& c) {
          const size_t num = op.schema().arguments().size();
          const IValue* args = stack->data() + stack->size() - num;
          begin(spec, read_boxed(spec, args, num), [&] { return std::vector<IValue>(args, args + num); }, c);
          if (!c.follow) return;
          if (spec.functional && c.follow->r.flags & kAsync) outputs(args[0], c.outs);
          if (spec.parts && !c.follow->token && c.follow->state.level.load() > 1)
            record_parts(spec, args, *c.follow);
        },
        [&] {
          op.redispatchBoxed(keys & kAfter, stack);
          return stack;
        },
        [](Stack* s) {
          const bool is = !s->empty() && s->back().isCustomClass();
          return is ? s->back().toCustomClass<c10d::Work>() : c10::intrusive_ptr<c10d::Work>();
        });
  }

 private:
  const Spec& spec_;
};
torch::CppFunction boxed_kernel(const Spec& spec) {
  // Never freed: a kernel may run in one thread while another unregisters it.
  static auto* const kept = new std::map<int, c10::BoxedKernel>;
  auto found = kept->find(spec.number);
  if (found == kept->end()) {
    auto made = c10::BoxedKernel::makeFromFunctor(std::make_unique<BoxedKernel>(spec));
    found = kept->emplace(spec.number, std::move(made)).first;
  }
  return torch::CppFunction::makeFromBoxedKernel(found->second);
}

// A kernel with the op's own signature. `Slot` tells kernels of equal signatures apart.
template <int Slot, typename Signature>
struct Typed;
template <int Slot, typename Result, typename... Args>
struct Typed<Slot, Result(Args...)> {
  static inline const Spec* row = nullptr;
  static Result kernel(c10::DispatchKeySet keys, Args... args) {
    const Spec& spec = *row;
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(("c10d::" + spec.name).c_str(), "")
                               .template typed<Result(Args...)>();
    return around(
        spec,
        [&](Issue& c) {
          begin(spec, read_typed(spec, args...),
                [&] { return std::vector<IValue>{IValue(args)...}; }, c);
          if (c.follow && spec.functional && c.follow->r.flags & kAsync)
            outputs(std::get<0>(std::tie(args...)), c.outs);
        },
        [&]() -> Result { return op.redispatch(keys & kAfter, std::forward<Args>(args)...); },
        [](const Result& result) -> const auto& { return work_in(result); });
  }
  static torch::CppFunction function(const Spec& spec) {
    row = &spec;
    using F = Result(c10::DispatchKeySet, Args...);
    return torch::CppFunction(c10::CompileTimeFunctionPointer<F, &kernel>());
  }
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GroupArg = const c10::intrusive_ptr<c10d::ProcessGroup>&;
using ReduceArg = const c10::intrusive_ptr<c10d::ReduceOp>&;
using Lists = std::tuple<std::vector<at::Tensor>, WorkPtr>;
using One = std::tuple<at::Tensor, WorkPtr>;

// Signatures of the frequent ops, as torch/csrc/distributed/c10d/ProcessGroup.hpp has them.
const std::map<std::string_view, torch::CppFunction (*)(const Spec&)> kTyped = {
    {"allreduce_", &Typed<0, Lists(at::TensorList, GroupArg, ReduceArg,
                                   const std::optional<at::Tensor>&, bool, int64_t)>::function},
    {"broadcast_", &Typed<1, Lists(at::TensorList, GroupArg, int64_t, int64_t, bool,
                                   int64_t)>::function},
    {"_allgather_base_", &Typed<2, One(at::Tensor&, at::Tensor&, GroupArg, bool,
                                       int64_t)>::function},
    {"_reduce_scatter_base_", &Typed<3, One(at::Tensor&, at::Tensor&, GroupArg, ReduceArg, bool,
                                            int64_t)>::function},
    {"send", &Typed<4, WorkPtr(at::TensorList, GroupArg, int64_t, int64_t)>::function},
    {"recv_", &Typed<5, WorkPtr(at::TensorList, GroupArg, int64_t, int64_t)>::function},
};

// Hook _c10d_functional::wait_tensor, in which functional collectives and DTensor wait.
void wait_tensor(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto rest = keys & kAfter;
  State* s = current.load(std::memory_order_acquire);
  std::shared_ptr<Follow> held;
  if (s != nullptr && s->level.load(std::memory_order_relaxed) > 0 && stack->back().isTensor()) {
    const at::Tensor& tensor = stack->back().toTensor();
    if (tensor.defined() && tensor.has_storage() && !tensor.is_meta() &&
        !tensor.key_set().has(c10::DispatchKey::Python)) {
      std::lock_guard<std::mutex> guard(s->lock);
      const auto at = s->tensors.find(storage_of(tensor));
      if (at != s->tensors.end()) {
        held = at->second.lock();
        at->second.reset();  // its place in the queue stays
      }
    }
  }
  const int64_t t0 = held ? stands(*held) : 0;
  try {
    const InState waiting(kWaits);
    op.redispatchBoxed(rest, stack);
  } catch (...) {
    if (held) held->waited(t0, now_ns(), true);
    throw;
  }
  if (!held) return;
  held->waited(t0, now_ns(), false);
  if (!s->slow.load(std::memory_order_relaxed) || slow_waited == nullptr) return;
  py::gil_scoped_acquire gil;
  (*slow_waited)();
}

// The Work of a Python object. torch's own class is read where pybind11 keeps its pointer; a cast
// would look the type up first, 0.1 us a wait.
c10d::Work* work_of(PyObject* object) {
  static const PyTypeObject* const plain = py::detail::get_type_info(typeid(c10d::Work))->type;
  const auto* instance = reinterpret_cast<py::detail::instance*>(object);
  if (Py_TYPE(object) == plain && instance->simple_layout)
    return static_cast<c10d::Work*>(instance->simple_value_holder[0]);
  return py::handle(object).cast<c10d::Work*>();
}

// Work.wait for Python. `original` is the replaced method.
PyObject* wait(PyObject* original, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  std::shared_ptr<Follow> held;
  std::shared_ptr<Batch> ops;
  c10d::Work* work = nullptr;
  const State* s = current.load(std::memory_order_relaxed);
  if (s != nullptr && num > 0) {
    try {
      work = work_of(args[0]);
      if (work != nullptr) std::tie(held, ops) = followed_by<Tied, TiedBatch>(*work);
    } catch (const std::exception&) {
    }
  }
  const InState waiting(kWaits);
  if (ops)
    for (const SpanPtr& span : ops->timed) stands(*span->op);
  if (!held) {
    PyObject* result = PyObject_Vectorcall(original, args, num, names);
    if (ops && result != nullptr) ops->ended(true);
    return result;
  }
  Follow& f = *held;
  const int64_t t0 = stands(f);
  PyObject* result = PyObject_Vectorcall(original, args, num, names);
  const int64_t t1 = now_ns();
  if (f.any_source && result != nullptr) {  // its Work knows the sender, by rank in the group
    const auto from = static_cast<size_t>(work->sourceRank());
    if (from < f.open.group->ranks.size()) f.r.peer = f.open.group->ranks[from];
  }
  f.waited(t0, t1, result == nullptr);
  if (result != nullptr && f.state.slow.load() && slow_waited != nullptr) (*slow_waited)();
  return result;
}
PyMethodDef wait_def = {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&wait)),
                        METH_FASTCALL | METH_KEYWORDS, nullptr};

void add(torch::Library& library, const Spec& spec) {
  const std::string& name = spec.name;
  if (!c10::Dispatcher::singleton().findSchema({"c10d::" + name, ""})) return;
  if (const auto typed = kTyped.find(name); typed != kTyped.end()) {
    try {
      library.impl(name.c_str(), typed->second(spec));
      return;
    } catch (const std::exception&) {  // another torch's signature
    }
  }
  library.impl(name.c_str(), boxed_kernel(spec));
}
torch::Library* registered = nullptr;  // not destroyed at exit: torch may be gone by then
torch::Library* registered_waits = nullptr;

void uninstall() {
  delete std::exchange(registered, nullptr);
  delete std::exchange(registered_waits, nullptr);
}

void install() {
  if (registered != nullptr) return;
  registered = new torch::Library(torch::Library::IMPL, "c10d", kKey, __FILE__, __LINE__);
  for (const Spec& spec : specs()) add(*registered, spec);
  registered_waits =
      new torch::Library(torch::Library::IMPL, "_c10d_functional", kKey, __FILE__, __LINE__);
  registered_waits->impl("wait_tensor", torch::CppFunction::makeFromBoxedFunction<&wait_tensor>());
}

// Poll ops on a device. Returns all ops that ended while watch slow is on, and whether there
// were device ops to poll.
std::pair<std::deque<std::pair<Record, int64_t>>, bool> poll(State& s) {
  py::gil_scoped_release no_gil;
  std::deque<std::pair<std::shared_ptr<Follow>, c10::intrusive_ptr<c10d::Work>>> open, still;
  {
    std::lock_guard<std::mutex> guard(s.lock);
    open.swap(s.polled);
  }
  const bool looked = !open.empty();
  for (auto& entry : open) {
    try {
      if (entry.second->isCompleted())
        entry.first->done(now_ns(), kPolled);
      else
        still.push_back(std::move(entry));
    } catch (const std::exception&) {  // it cannot be asked
      entry.first->finish();
    }
  }
  open.clear();  // Works are destroyed here, without our lock
  std::lock_guard<std::mutex> guard(s.lock);
  s.polled.insert(s.polled.begin(), still.begin(), still.end());
  return {std::exchange(s.slow_ended, {}), looked};
}

}  // namespace
}  // namespace pardbg

#include "module.hpp"
