// The agent's hot path: every c10d op recorded in the ring without Python, and without the GIL.
//
// A kernel at BackendSelect looks up what it knows of this kind of op on this group, numbers it, goes
// on to the backend, and writes OP_ISSUE; completion is state.hpp's. What needs a person's or Python's
// word (a closed gate, watches, a first-seen kind of op, tensors on a device or of an odd sort, values
// that are not finite) is asked of Python before the op goes on: hooks/comm/hotpath.
//
// The frequent ops have kernels with their own C++ signatures: boxing the arguments and the result
// would cost half of all. Where torch's are others, and for the rest, one boxed kernel does.

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <string_view>

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
  bool parts;  // more than one number says how much goes to whom
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

  void add(const at::Tensor& t) {
    if (!t.defined()) return;
    if (first == nullptr) first = &t;
    if (!t.is_cpu() || t.layout() != c10::kStrided || t.is_nested() ||
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

struct Seen {  // what the arguments of an op say
  Tensors in, out;
  c10d::ProcessGroup* group = nullptr;
  int reduce = -1;
  int64_t root = -1, tag = 0;
  bool async = true;
};

template <typename T>
T* object(const IValue& v) {  // the schema says that it is one
  return static_cast<T*>(v.toObjectRef().getSlot(0).toCapsule().get());
}

Seen seen(const Spec& spec, const IValue* args) {
  Seen s;
  s.in.add(args[spec.ins < 0 ? 0 : spec.ins]);  // a barrier's has no bytes
  if (spec.outs != spec.ins) s.out.add(args[spec.outs]);
  s.group = object<c10d::ProcessGroup>(args[spec.group]);
  if (spec.reduce >= 0) s.reduce = object<c10d::ReduceOp>(args[spec.reduce])->op_;
  if (spec.root >= 0) s.root = args[spec.root].toInt();
  if (spec.tag >= 0) s.tag = args[spec.tag].toInt();
  if (spec.async_op >= 0) s.async = args[spec.async_op].toBool();
  return s;
}

template <int N, typename... Args>
Seen seen(const std::tuple<Args...>& args) {
  constexpr const Spec& spec = kSpecs[N];
  Seen s;
  s.in.add(std::get<spec.ins>(args));
  if constexpr (spec.outs != spec.ins) s.out.add(std::get<spec.outs>(args));
  s.group = std::get<spec.group>(args).get();
  if constexpr (spec.reduce >= 0) s.reduce = std::get<spec.reduce>(args)->op_;
  if constexpr (spec.root >= 0) s.root = std::get<spec.root>(args);
  if constexpr (spec.tag >= 0) s.tag = std::get<spec.tag>(args);
  if constexpr (spec.async_op >= 0) s.async = std::get<spec.async_op>(args);
  return s;
}

struct Coming {  // what goes on about an op from before its issue on
  std::shared_ptr<Follow> follow;  // null: it has no record
  std::vector<const void*> outs;   // storages of a functional collective's output
};

// Python's word: it waits at the gate, numbers the op, and says what it is. Leaves `c.follow` null
// for an op that has no record. Only KeyboardInterrupt and the like come out of it.
void ask(int n, const std::vector<IValue>& args, Key key, bool learn, Coming& c) {
  const Spec& spec = kSpecs[n];
  py::gil_scoped_acquire gil;
  if (asks == nullptr) return;
  const auto group = args[spec.group].toCustomClass<c10d::ProcessGroup>();
  py::list given(args.size());
  for (size_t i = 0; i < args.size(); i++)
    given[i] = int(i) == spec.group ? py::none() : torch::jit::toPyObject(args[i]);
  const py::object said = (*asks)(n, py::cast(group), reinterpret_cast<uintptr_t>(key.group),
                                  spec.p2p ? -1 : key.reduce, given);
  State* s = current.load();
  if (said.is_none() || s == nullptr) return;
  const py::tuple op = said.cast<py::tuple>();
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
  if (!learn || !follow->host_waits) return;
  Edge* edge = spec.p2p ? s->table.edge(known, r.peer, key.tag, spec.send) : nullptr;
  s->keep(key, Signature{known, edge, r.group_id, r.name_id, r.peer});
}

// What happens before the op goes to the backend. `boxed` gives its arguments for Python.
template <typename Boxed>
void begin(int n, const Seen& op, Boxed&& boxed, Coming& c) {
  const Spec& spec = kSpecs[n];
  State* s = current.load(std::memory_order_acquire);
  if (s == nullptr && passing.load(std::memory_order_relaxed)) return;
  const Tensors& in = op.in;
  const bool plain = in.plain && op.out.plain;
  // Only the root of a scatter has something that goes in.
  const at::Tensor* first = in.first != nullptr ? in.first : op.out.first;
  Key key{n, op.group, first == nullptr ? -1 : int(first->scalar_type()), op.reduce, op.root,
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
  const bool simple = s != nullptr && plain && (thread_known || level == 0);
  const bool found = simple && s->find(key, known);
  if (!found || (level > 0 && s->closed.load(std::memory_order_acquire)) ||
      (level > 1 && ((spec.reduce >= 0 && n != 8) || spec.send) && in.first != nullptr &&
       s->probes.load(std::memory_order_relaxed) &&
       !finite(*in.first, in.bytes, s->probe_ns, s->since_ns))) {
    ask(n, boxed(), key, plain, c);
    return;
  }
  const uint32_t seq = known.group->next[spec.p2p].fetch_add(1, std::memory_order_relaxed);
  if (level == 0) {  // numbers stay those of the other ranks
    s->table.passed(known.group, seq, known.edge, -1);
    return;
  }
  if (label.letter) {
    std::lock_guard<std::mutex> guard(s->lock);
    s->label_of(data, spec.send, true);
  }
  c.follow = std::make_shared<Follow>(*s);
  Record& r = c.follow->r;
  r.seq = seq;
  if (spec.ins >= 0) r.a = in.bytes, r.b = spec.outs == spec.ins ? in.bytes : op.out.bytes;
  r.name_id = known.name_id, r.group_id = known.group_id, r.peer = known.peer;
  r.stage = label.stage, r.mb = label.mb;
  r.step = s->step.load(std::memory_order_relaxed);
  r.flags = thread_flag | (op.async ? kAsync : 0) | (spec.p2p ? kP2P : 0) | (spec.send ? kSend : 0);
  r.t0 = now_ns();
  Open& open = c.follow->open;
  open.group = known.group, open.group_id = r.group_id, open.op = spec.op, open.seq = seq;
  open.p2p = spec.p2p, open.send = spec.send, open.peer = r.peer, open.tag = op.tag;
  open.name_id = r.name_id, open.t0 = r.t0, open.a = r.a, open.b = r.b;
  s->table.issued(open, known.edge);
  s->hook_calls.fetch_add(1, std::memory_order_relaxed);
}

// How many bytes of an all_to_all go to whom: collectives.tell_parts.
void tell_parts(const Spec& spec, const IValue* args, Follow& f) {
  const auto& ranks = f.open.group->ranks;
  const size_t num = ranks.size(), own = object<c10d::ProcessGroup>(args[spec.group])->getRank();
  std::vector<int64_t> parts;
  if (args[spec.ins].isTensor()) {
    const at::Tensor& t = args[spec.ins].toTensor();
    const auto bytes = static_cast<int64_t>(t.nbytes());
    const auto rows = args[4].toIntVector();
    const int64_t row = bytes / std::max<int64_t>(1, t.dim() > 0 ? t.size(0) : 1);
    if (rows.empty()) parts.assign(num, bytes / static_cast<int64_t>(num));
    for (const int64_t n : rows) parts.push_back(n * row);
  } else {
    for (const IValue& part : args[spec.ins].toListRef())
      parts.push_back(static_cast<int64_t>(part.toTensor().nbytes()));
  }
  if (parts.size() != num || num > kMaxParts) return;
  Record r = f.r;
  r.kind = kPart, r.flags = 0, r.stage = r.mb = -1, r.t1 = r.t0, r.b = 0;
  for (size_t i = 0; i < num; i++) {
    r.peer = ranks[i], r.a = parts[i];
    if (r.a != 0 && i != own) f.state.ring.write(r);
  }
}

// The output tensors of a functional collective: its wait will come for one of them.
void expect(State& s, const std::vector<const void*>& outs, const std::shared_ptr<Follow>& follow) {
  std::lock_guard<std::mutex> guard(s.lock);
  for (const void* data : outs) {
    if (s.tensors.insert_or_assign(data, follow).second) s.tensors_by_age.push_back(data);
    if (s.tensors_by_age.size() > kMaxTensors) {
      s.tensors.erase(s.tensors_by_age.front());
      s.tensors_by_age.pop_front();
    }
  }
}

// The op is issued: its record, and who tells of its completion.
void issued(const Spec& spec, Coming& c, const c10::intrusive_ptr<c10d::Work>& work) {
  Follow& f = *c.follow;
  State& s = f.state;
  Record& r = f.r;
  r.t1 = now_ns();
  if (s.level.load(std::memory_order_relaxed) > 1) s.ring.write(r);
  if (!work) {  // the backend made the stream wait already and gives no Work
    f.finish();
    return;
  }
  f.any_source = spec.p2p && spec.root < 0;
  if (!f.host_waits) {
    f.told = true;
    std::lock_guard<std::mutex> guard(s.lock);
    if (s.polled.size() >= kMaxPolled) {
      s.polled.front().first->finish();
      s.polled.pop_front();
    }
    s.polled.emplace_back(c.follow, work);
  } else if (spec.future) {
    c10::intrusive_ptr<c10::ivalue::Future> future;
    try {
      future = work->getFuture();
    } catch (const std::exception&) {  // it has none; its end or its wait tells
    }
    if (future && future->completed() && !future->hasError()) {
      f.done(r.t1, kCompleted);
      return;
    }
    if (future) {
      f.told = true;
      future->addCallback([follow = c.follow](c10::ivalue::Future& ended) {
        follow->done(now_ns(), ended.hasError() ? kCompleted | kFailed : kCompleted);
      });
    }
  }
  if (follow_work(*work, c.follow) && !c.outs.empty()) expect(s, c.outs, c.follow);
}

void refused(Follow& f) {
  f.finish();
  f.r.flags |= kFailed, f.r.t1 = now_ns();
  if (f.state.level.load() > 1) f.state.ring.write(f.r);
}

// Whatever the hook does, the op is issued exactly once, and fails as it would have. `look` is what
// comes before, `call` issues, `work_of` finds the Work in what that returns.
template <int N, typename Look, typename Call, typename WorkOf>
auto around(Look&& look, Call&& call, WorkOf&& work_of) {
  Coming c;
  try {
    look(c);
  } catch (py::error_already_set&) {
    throw;  // KeyboardInterrupt at a gate
  } catch (const std::exception&) {
    if (State* s = current.load()) s->errors += 1;
  }
  if (!c.follow) return call();
  if (c.follow->r.flags & kAsync) c.follow->state.places.note(c.follow->r.t0);
  auto result = [&] {
    try {
      const Stands issuing(kIssues);
      return call();
    } catch (...) {
      refused(*c.follow);
      throw;
    }
  }();
  try {
    issued(kSpecs[N], c, work_of(result));
  } catch (const std::exception&) {
    c.follow->state.errors += 1;
    c.follow->finish();  // nothing else may say it
  }
  return result;
}

// As torch's own registry of such Works knows them: empty tensors have no data, but a storage each.
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

template <int N>
void boxed_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr const Spec& spec = kSpecs[N];
  around<N>(
      [&](Coming& c) {
        const size_t num = op.schema().arguments().size();
        const IValue* args = stack->data() + stack->size() - num;
        begin(N, seen(spec, args), [&] { return std::vector<IValue>(args, args + num); }, c);
        if (!c.follow) return;
        if (spec.functional && c.follow->r.flags & kAsync) outputs(args[0], c.outs);
        if constexpr (spec.parts)
          if (!c.follow->token && c.follow->state.level.load() > 1)
            tell_parts(spec, args, *c.follow);
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

template <int N, typename Signature>
struct Typed;
template <int N, typename Result, typename... Args>
struct Typed<N, Result(Args...)> {
  static Result kernel(c10::DispatchKeySet keys, Args... args) {
    constexpr const Spec& spec = kSpecs[N];
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow((std::string("c10d::") + spec.name).c_str(), "")
                               .template typed<Result(Args...)>();
    return around<N>(
        [&](Coming& c) {
          const auto all = std::tie(args...);
          begin(N, seen<N>(all), [&] { return std::vector<IValue>{IValue(args)...}; }, c);
          if (c.follow && spec.functional && c.follow->r.flags & kAsync)
            outputs(std::get<0>(all), c.outs);
        },
        [&]() -> Result { return op.redispatch(keys & kAfter, std::forward<Args>(args)...); },
        [](const Result& result) -> const auto& { return work_in(result); });
  }
  static torch::CppFunction function() {
    using F = Result(c10::DispatchKeySet, Args...);
    return torch::CppFunction(c10::CompileTimeFunctionPointer<F, &kernel>());
  }
};

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using GroupArg = const c10::intrusive_ptr<c10d::ProcessGroup>&;
using ReduceArg = const c10::intrusive_ptr<c10d::ReduceOp>&;
using Lists = std::tuple<std::vector<at::Tensor>, WorkPtr>;
using One = std::tuple<at::Tensor, WorkPtr>;

// The kernel with the op's own signature, as torch/csrc/distributed/c10d/ProcessGroup.hpp has it.
template <int N>
torch::CppFunction typed_kernel() {
  constexpr std::string_view name = kSpecs[N].name;
  if constexpr (name == "allreduce_")
    return Typed<N, Lists(at::TensorList, GroupArg, ReduceArg, const std::optional<at::Tensor>&, bool,
                          int64_t)>::function();
  else if constexpr (name == "broadcast_")
    return Typed<N, Lists(at::TensorList, GroupArg, int64_t, int64_t, bool, int64_t)>::function();
  else if constexpr (name == "_allgather_base_")
    return Typed<N, One(at::Tensor&, at::Tensor&, GroupArg, bool, int64_t)>::function();
  else if constexpr (name == "_reduce_scatter_base_")
    return Typed<N, One(at::Tensor&, at::Tensor&, GroupArg, ReduceArg, bool, int64_t)>::function();
  else if constexpr (name == "send" || name == "recv_")
    return Typed<N, WorkPtr(at::TensorList, GroupArg, int64_t, int64_t)>::function();
  else
    throw std::invalid_argument("boxed");
}

// _c10d_functional::wait_tensor: functional collectives and DTensor wait here.
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
  const int64_t t0 = now_ns();
  try {
    const Stands waiting(kWaits);
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

// Work.wait for Python. `original` is the method that was there.
PyObject* wait(PyObject* original, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  std::shared_ptr<Follow> held;
  c10d::Work* work = nullptr;
  const State* s = current.load(std::memory_order_relaxed);
  if (s != nullptr && num > 0) {
    try {
      work = work_of(args[0]);
      if (work != nullptr) held = followed_by(*work);
    } catch (const std::exception&) {
    }
  }
  const Stands waiting(kWaits);
  if (!held) return PyObject_Vectorcall(original, args, num, names);
  Follow& f = *held;
  const int64_t t0 = now_ns();
  PyObject* result = PyObject_Vectorcall(original, args, num, names);
  const int64_t t1 = now_ns();
  if (f.any_source && result != nullptr) {  // its Work knows from whom, by rank in the group
    const auto from = static_cast<size_t>(work->sourceRank());
    if (from < f.open.group->ranks.size()) f.r.peer = f.open.group->ranks[from];
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
  if (has) {
    try {
      library.impl(kSpecs[N].name, typed_kernel<N>());
    } catch (const std::exception&) {  // another torch's signature, or none of these
      library.impl(kSpecs[N].name, torch::CppFunction::makeFromBoxedFunction<&boxed_kernel<N>>());
    }
  }
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

// Look for ended ops on a device: were there any to look at? And what ended, of whatever kind, while
// watch slow is on.
std::pair<std::deque<std::pair<Record, int64_t>>, bool> poll(State& s) {
  py::gil_scoped_release no_gil;
  std::deque<std::pair<std::shared_ptr<Follow>, c10::intrusive_ptr<c10d::Work>>> open, still;
  {
    std::lock_guard<std::mutex> guard(s.lock);
    open.swap(s.polled);
  }
  const bool some = !open.empty();
  for (auto& entry : open) {
    if (entry.second->isCompleted())
      entry.first->done(now_ns(), kPolled);
    else
      still.push_back(std::move(entry));
  }
  open.clear();  // Works die here, on no lock of ours
  std::lock_guard<std::mutex> guard(s.lock);
  s.polled.insert(s.polled.begin(), still.begin(), still.end());
  return {std::exchange(s.slow_ended, {}), some};
}

}  // namespace
}  // namespace pardbg

#include "module.hpp"
