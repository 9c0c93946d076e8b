// The agent's hot path: every c10d op recorded in the ring without Python, and without the GIL.
//
// A boxed kernel at BackendSelect looks up what it knows of this kind of op on this group, numbers
// it, goes on to the backend, and writes OP_ISSUE; completion is state.hpp's. What needs a person's
// or Python's word (a closed gate, watches, a first-seen kind of op, tensors on a device or of an
// odd sort, values that are not finite) is asked of Python before the op goes on: hooks/comm/native.

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include "scan.hpp"
#include "state.hpp"

namespace py = pybind11;
using c10::IValue;
using torch::jit::Stack;

namespace pardbg {
namespace {

struct Spec {  // as hooks/comm/op_arguments.SPECS, in its order: places of arguments
  const char* name;
  const char* op;
  int group, root, tag, async_op, reduce;
  int ins, outs;  // tensors that go in and come out; equal: in place; -1: none that count
  bool p2p, send, future, functional;
  bool python;  // always asked: it says how much goes to whom
};
constexpr Spec kSpecs[] = {
    {"allreduce_", "all_reduce", 1, -1, -1, 4, 2, 0, 0, false, false, true, true, false},
    {"allreduce_coalesced_", "all_reduce", 1, -1, -1, 3, 2, 0, 0, false, false, true, true, false},
    {"broadcast_", "broadcast", 1, 2, -1, 4, -1, 0, 0, false, false, true, true, false},
    {"reduce_", "reduce", 1, 3, -1, 5, 2, 0, 0, false, false, true, false, false},
    {"allgather_", "all_gather", 2, -1, -1, 3, -1, 1, 0, false, false, true, false, false},
    {"_allgather_base_", "all_gather", 2, -1, -1, 3, -1, 1, 0, false, false, true, true, false},
    {"allgather_into_tensor_coalesced_", "all_gather", 2, -1, -1, 3, -1, 1, 0, false, false, true,
     true, false},
    {"allgather_coalesced_", "all_gather", 2, -1, -1, 3, -1, 1, 0, false, false, true, false, false},
    {"reduce_scatter_", "reduce_scatter", 2, -1, -1, 4, 3, 1, 0, false, false, false, false, false},
    {"_reduce_scatter_base_", "reduce_scatter", 2, -1, -1, 4, 3, 1, 0, false, false, false, true,
     false},
    {"reduce_scatter_tensor_coalesced_", "reduce_scatter", 2, -1, -1, 4, 3, 1, 0, false, false,
     false, true, false},
    {"gather_", "gather", 2, 3, -1, 4, -1, 1, 0, false, false, true, false, false},
    {"scatter_", "scatter", 2, 3, -1, 4, -1, 1, 0, false, false, true, false, false},
    {"alltoall_", "all_to_all", 2, -1, -1, 3, -1, 1, 0, false, false, true, false, true},
    {"alltoall_base_", "all_to_all", 2, -1, -1, 5, -1, 1, 0, false, false, true, true, true},
    {"barrier", "barrier", 1, -1, -1, 3, -1, -1, -1, false, false, true, false, false},
    {"send", "send", 1, 2, 3, -1, -1, 0, 0, true, true, false, false, false},
    {"recv_", "recv", 1, 2, 3, -1, -1, 0, 0, true, false, false, false, false},
    {"recv_any_source_", "recv", 1, -1, 2, -1, -1, 0, 0, true, false, false, false, false},
};
constexpr int kNumSpecs = sizeof(kSpecs) / sizeof(Spec);
constexpr auto kKey = c10::DispatchKey::BackendSelect;

std::atomic<State*> current{nullptr};  // of this process's Core; never freed: ops still point to it
std::atomic<bool> passing{false};      // the agent is off in this process
py::object* asks = nullptr;            // hooks.comm.native.ask, and what watch slow wants of a wait
py::object* slow_waited = nullptr;

// Flag.OTHER_THREAD of this thread's ops, as Python said it of the first one.
thread_local bool thread_known = false;
thread_local uint16_t thread_flag = 0;

struct Tensors {  // of an op, added up
  int64_t bytes = 0;
  const at::Tensor* first = nullptr;
  bool plain = true;  // ordinary tensors in host memory

  void add(const IValue& v) {
    if (v.isTensor()) {
      const at::Tensor& t = v.toTensor();
      if (!t.defined()) return;
      if (first == nullptr) first = &t;
      if (!t.is_cpu() || t.layout() != c10::kStrided || t.is_nested() ||
          t.key_set().has(c10::DispatchKey::Python))
        plain = false;
      else
        bytes += static_cast<int64_t>(t.nbytes());
    } else if (v.isList()) {
      for (const IValue& part : v.toListRef()) add(part);
    }
  }
};

struct Coming {  // what goes on about an op from before its issue on
  State* state = nullptr;
  Record r{};
  uint64_t token = 0;
  Group* group = nullptr;
  bool host_waits = true;
};

// Python's word: it waits at the gate, numbers the op, and says what it is. Leaves `c.state` null
// for an op that has no record. Only KeyboardInterrupt and the like come out of it.
void ask(int n, const IValue* args, size_t num, Key key, bool learn, Coming& c) {
  const Spec& spec = kSpecs[n];
  py::gil_scoped_acquire gil;
  if (asks == nullptr) return;
  const auto group = args[spec.group].toCustomClass<c10d::ProcessGroup>();
  py::list given(num);
  for (size_t i = 0; i < num; i++)
    given[i] = int(i) == spec.group ? py::none() : torch::jit::toPyObject(args[i]);
  const py::object said = (*asks)(n, py::cast(group), reinterpret_cast<uintptr_t>(key.group),
                                  spec.p2p ? -1 : key.reduce, given);
  State* s = current.load();
  if (said.is_none() || s == nullptr) return;
  const py::tuple op = said.cast<py::tuple>();
  Record& r = c.r;
  c.token = op[0].cast<uint64_t>(), r.name_id = op[1].cast<uint32_t>();
  r.t0 = op[2].cast<int64_t>(), r.step = op[3].cast<uint32_t>(), r.seq = op[4].cast<uint32_t>();
  r.group_id = op[5].cast<uint16_t>(), r.flags = op[6].cast<uint16_t>();
  r.stage = op[7].cast<int16_t>(), r.mb = op[8].cast<int16_t>(), r.peer = op[9].cast<int16_t>();
  r.a = op[10].cast<int64_t>(), r.b = op[11].cast<int64_t>(), c.host_waits = op[12].cast<bool>();
  c.group = s->table.group(op[13].cast<std::string>());
  if (c.group->ranks.empty()) c.group->ranks = op[14].cast<std::vector<int16_t>>();
  c.state = s;
  thread_known = true, thread_flag = r.flags & kOtherThread;
  if (!learn || !c.host_waits) return;
  Edge* edge = spec.p2p ? s->table.edge(c.group, r.peer, key.tag, spec.send) : nullptr;
  s->keep(key, Signature{c.group, edge, r.group_id, r.name_id, r.peer});
}

// What happens before the op goes to the backend.
void begin(int n, const IValue* args, size_t num, Coming& c) {
  const Spec& spec = kSpecs[n];
  State* s = current.load(std::memory_order_acquire);
  if (s == nullptr && passing.load(std::memory_order_relaxed)) return;
  Record& r = c.r;
  Tensors in;
  if (spec.ins >= 0) {
    in.add(args[spec.ins]);
    r.a = r.b = in.bytes;
    if (spec.outs != spec.ins) {
      Tensors out;
      out.add(args[spec.outs]);
      r.b = out.bytes, in.plain &= out.plain;
    }
  } else {
    in.add(args[0]);  // a barrier's
  }
  Key key{n, nullptr, in.first == nullptr ? -1 : int(in.first->scalar_type()), -1,
          spec.root < 0 ? -1 : args[spec.root].toInt(), spec.tag < 0 ? 0 : args[spec.tag].toInt()};
  key.group = args[spec.group].toCustomClass<c10d::ProcessGroup>().get();
  if (spec.reduce >= 0) key.reduce = args[spec.reduce].toCustomClass<c10d::ReduceOp>()->op_;
  const int level = s == nullptr ? 0 : s->level.load(std::memory_order_relaxed);
  Label label;
  const void* data = nullptr;
  if (spec.p2p && level > 0 && s->num_labels.load(std::memory_order_relaxed) && in.plain &&
      in.first != nullptr) {
    data = in.first->data_ptr();
    std::lock_guard<std::mutex> guard(s->lock);
    const auto at = s->labels.find({data, spec.send});
    if (at != s->labels.end()) label = at->second, key.reduce = label.letter;
  }
  Signature known;
  const bool simple = s != nullptr && in.plain && !spec.python && (thread_known || level == 0);
  const bool found = simple && s->find(key, known);
  if (!found || (level > 0 && s->closed.load(std::memory_order_acquire)) ||
      (level > 1 && ((spec.reduce >= 0 && n != 8) || spec.send) && in.first != nullptr &&
       s->probes.load(std::memory_order_relaxed) && !finite(*in.first, r.a, s->probe_ns, s->since_ns))) {
    ask(n, args, num, key, in.plain && !spec.python, c);
    return;
  }
  r.seq = known.group->next[spec.p2p].fetch_add(1, std::memory_order_relaxed);
  if (level == 0) {  // numbers stay those of the other ranks
    s->table.passed(known.group, r.seq, known.edge, -1);
    return;
  }
  if (label.letter) {
    std::lock_guard<std::mutex> guard(s->lock);
    s->num_labels -= s->labels.erase({data, spec.send});
  }
  c.state = s, c.group = known.group;
  r.name_id = known.name_id, r.group_id = known.group_id, r.peer = known.peer;
  r.stage = label.stage, r.mb = label.mb;
  r.step = s->step.load(std::memory_order_relaxed);
  r.flags = spec.p2p ? (spec.send ? kP2P | kSend | kAsync : kP2P | kAsync)
                     : args[spec.async_op].toBool() ? kAsync : 0;
  r.flags |= thread_flag;
  r.t0 = now_ns();
  c.token = s->table.issued(Open{known.group, r.group_id, spec.op, r.seq, spec.p2p, spec.send,
                                 r.peer, key.tag, -1, r.name_id, r.t0}, known.edge);
  s->hook_ns += kOpNs, s->hook_calls += 1;
}

// The output tensors of a functional collective: its wait will come for one of them.
void expect(State& s, const std::vector<const void*>& outs, const std::shared_ptr<Held>& held) {
  std::lock_guard<std::mutex> guard(s.lock);
  for (const void* data : outs) {
    if (s.tensors.insert_or_assign(data, held).second) s.tensors_by_age.push_back(data);
    if (s.tensors_by_age.size() > kMaxTensors) {
      s.tensors.erase(s.tensors_by_age.front());
      s.tensors_by_age.pop_front();
    }
  }
}

// The op is issued: its record, and who tells of its completion.
void issued(const Spec& spec, Coming& c, const Stack& stack, const std::vector<const void*>& outs) {
  State& s = *c.state;
  Record& r = c.r;
  r.t1 = now_ns();
  r.kind = kIssue, r.lane = kLaneComm;
  if (s.level.load(std::memory_order_relaxed) > 1) s.ring.write(r);
  c10::intrusive_ptr<c10d::Work> work;
  if (!stack.empty() && stack.back().isCustomClass()) work = stack.back().toCustomClass<c10d::Work>();
  if (!work) {  // the backend made the stream wait already and gives no Work
    s.table.completed(c.token);
    return;
  }
  const bool any = spec.p2p && spec.root < 0;
  auto follow = std::make_shared<Follow>(s, r, c.token, c.group, c.host_waits, any);
  if (!c.host_waits) {
    follow->told = true;
    std::lock_guard<std::mutex> guard(s.lock);
    if (s.polled.size() >= kMaxPolled) {
      s.table.completed(s.polled.front().first->token);
      s.polled.pop_front();
    }
    s.polled.emplace_back(follow, work);
  } else if (spec.future) {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    try {
      future = work->getFuture();
    } catch (const std::exception&) {  // it has none; its end or its wait tells
    }
    if (future) {
      follow->told = true;
      future->addCallback([follow](c10::ivalue::Future& f) {
        follow->done(now_ns(), f.hasError() ? kCompleted | kFailed : kCompleted);
      });
    }
  }
  const auto held = follow_work(*work, follow);
  if (held && !outs.empty()) expect(s, outs, held);
}

std::vector<const void*> outputs(const Spec& spec, const IValue& v) {
  std::vector<const void*> found;
  if (v.isTensor()) {
    found.push_back(v.toTensor().data_ptr());
  } else if (v.isTensorList()) {
    for (const IValue& part : v.toListRef()) found.push_back(part.toTensor().data_ptr());
  }
  return found;
}

// Whatever the hook does, the op is issued exactly once, and fails as it would have.
template <int N>
void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  constexpr const Spec& spec = kSpecs[N];
  Coming c;
  std::vector<const void*> outs;
  try {
    const size_t num = op.schema().arguments().size();
    const IValue* args = stack->data() + stack->size() - num;
    begin(N, args, num, c);
    if (spec.functional && c.state != nullptr && c.r.flags & kAsync) outs = outputs(spec, args[0]);
  } catch (py::error_already_set&) {
    throw;  // KeyboardInterrupt at a gate
  } catch (const std::exception&) {
    if (State* s = current.load()) s->errors += 1;
  }
  if (c.state == nullptr) {
    op.redispatchBoxed(rest, stack);
    return;
  }
  try {
    op.redispatchBoxed(rest, stack);
  } catch (...) {  // the backend refused it
    c.state->table.completed(c.token);
    c.r.kind = kIssue, c.r.lane = kLaneComm, c.r.flags |= kFailed, c.r.t1 = now_ns();
    if (c.state->level.load() > 1) c.state->ring.write(c.r);
    throw;
  }
  try {
    issued(spec, c, *stack, outs);
  } catch (const std::exception&) {
    c.state->errors += 1;
    c.state->table.completed(c.token);  // nothing else may say it
  }
}

// _c10d_functional::wait_tensor: functional collectives and DTensor wait here.
void wait_tensor(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  State* s = current.load(std::memory_order_acquire);
  std::shared_ptr<Held> held;
  if (s != nullptr && s->level.load(std::memory_order_relaxed) > 0 && stack->back().isTensor()) {
    const at::Tensor& tensor = stack->back().toTensor();
    if (tensor.defined() && tensor.has_storage() && !tensor.is_meta() &&
        !tensor.key_set().has(c10::DispatchKey::Python)) {
      std::lock_guard<std::mutex> guard(s->lock);
      const auto at = s->tensors.find(tensor.data_ptr());
      if (at != s->tensors.end()) {
        held = at->second.lock();
        at->second.reset();  // its place in the queue stays
      }
    }
  }
  const int64_t t0 = now_ns();
  try {
    op.redispatchBoxed(rest, stack);
  } catch (...) {
    if (held) held->follow->waited(t0, now_ns(), true);
    throw;
  }
  if (!held) return;
  held->follow->waited(t0, now_ns(), false);
  if (!s->slow.load(std::memory_order_relaxed) || slow_waited == nullptr) return;
  py::gil_scoped_acquire gil;
  (*slow_waited)();
}

// Work.wait for Python. `original` is the method that was there.
PyObject* wait(PyObject* original, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  std::shared_ptr<Held> held;
  c10d::Work* work = nullptr;
  const State* s = current.load(std::memory_order_relaxed);
  if (s != nullptr && num > 0) {
    try {
      work = py::handle(args[0]).cast<c10d::Work*>();
      if (work != nullptr) held = held_by(*work);
    } catch (const std::exception&) {
    }
  }
  if (!held) return PyObject_Vectorcall(original, args, num, names);
  Follow& f = *held->follow;
  const int64_t t0 = now_ns();
  PyObject* result = PyObject_Vectorcall(original, args, num, names);
  const int64_t t1 = now_ns();
  if (f.any_source && result != nullptr) {  // its Work knows from whom, by rank in the group
    const auto from = static_cast<size_t>(work->sourceRank());
    if (from < f.group->ranks.size()) f.r.peer = f.group->ranks[from];
  }
  f.waited(t0, t1, result == nullptr);
  if (result != nullptr && f.state.slow.load() && slow_waited != nullptr) (*slow_waited)();
  return result;
}
PyMethodDef wait_def = {"wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&wait)),
                        METH_FASTCALL | METH_KEYWORDS, nullptr};

template <int N>
void add(torch::Library& library) {
  const auto has = c10::Dispatcher::singleton().findSchema(
      {std::string("c10d::") + kSpecs[N].name, ""});
  if (has) library.impl(kSpecs[N].name, torch::CppFunction::makeFromBoxedFunction<&kernel<N>>());
  if constexpr (N + 1 < kNumSpecs) add<N + 1>(library);
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
  add<0>(*registered);
  registered_waits =
      new torch::Library(torch::Library::IMPL, "_c10d_functional", kKey, __FILE__, __LINE__);
  registered_waits->impl("wait_tensor", torch::CppFunction::makeFromBoxedFunction<&wait_tensor>());
}

// Look for ended ops on a device. Returns those that ended meanwhile while watch slow is on.
std::deque<std::pair<Record, int64_t>> poll(State& s) {
  py::gil_scoped_release no_gil;
  std::deque<std::pair<std::shared_ptr<Follow>, c10::intrusive_ptr<c10d::Work>>> open, still;
  {
    std::lock_guard<std::mutex> guard(s.lock);
    open.swap(s.polled);
  }
  for (auto& entry : open) {
    if (entry.second->isCompleted())
      entry.first->done(now_ns(), kPolled);
    else
      still.push_back(std::move(entry));
  }
  open.clear();  // Works die here, on no lock of ours
  std::lock_guard<std::mutex> guard(s.lock);
  s.polled.insert(s.polled.begin(), still.begin(), still.end());
  return std::exchange(s.slow_ended, {});
}

}  // namespace
}  // namespace pardbg

#include "module.hpp"
