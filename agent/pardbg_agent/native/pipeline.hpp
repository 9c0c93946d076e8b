// Methods of torch.distributed.pipelining's stages, recorded without Python in a schedule's run while
// no gate is closed, no watch checks actions, and no activations are counted. Else their hooks in
// Python (hooks/training/pipeline) write the same records. Included by module.hpp; all of it runs
// with the GIL.

#pragma once

#include <torch/csrc/autograd/python_variable.h>

namespace pardbg {
namespace {

struct Quick {  // a method, and its hook in Python
  PyObject *original, *python;
  // a: an action, with the verb's first letter; l: loss; m: messages, F or B; phases.hpp's: f, b:
  // forward and backward, o, e: the optimizer's begin and end, which have no original; fsdp.hpp's:
  // u: a unit moves, with its verb's letter
  char kind, letter;
  bool send;
};

struct Stage {
  const PyObject* object;
  int16_t index;
  bool last, has_backward;
};

struct Run {  // a schedule's step on this thread
  Owner* owner = nullptr;
  PyObject* core = nullptr;  // watched_rank.Core
  int depth = 0;
  std::vector<Stage> stages;  // stages of this run
  const PyObject* pending = nullptr;  // the stage of a forward whose loss is still to be computed
  Record forward{};                   // its record,
  SpanPtr on_device;                  // and its span on a device
  uint32_t phase = 0;
};
thread_local Run run;

struct Words {  // interned names of attributes
#define PARDBG_WORD(word) PyObject* const word = PyUnicode_InternFromString(#word)
  PARDBG_WORD(stage_index);
  PARDBG_WORD(num_stages);
  PARDBG_WORD(has_backward);
  PARDBG_WORD(tensor);
  PARDBG_WORD(defs);
  PARDBG_WORD(step);
  PARDBG_WORD(step_t0);
  PARDBG_WORD(spent);
  PARDBG_WORD(hook_ns);
  PARDBG_WORD(hook_calls);
  PARDBG_WORD(explicit_steps);
  PARDBG_WORD(count_step);
  PARDBG_WORD(_is_compiling_flag);
  PARDBG_WORD(_all_gather_result);
  PARDBG_WORD(_sharded_state);
  PARDBG_WORD(reduce_grads);
#undef PARDBG_WORD
};
const Words& words() {
  static const Words all;
  return all;
}

py::object get(PyObject* of, PyObject* word) {
  PyObject* found = PyObject_GetAttr(of, word);
  if (found == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(found);
}
int64_t number_within(PyObject* number, int64_t high) {
  int overflow = 0;
  const int64_t v = PyLong_Check(number) ? PyLong_AsLongLongAndOverflow(number, &overflow) : -1;
  if (overflow != 0 || v < 0 || v > high) throw std::out_of_range("pipeline");
  return v;
}
int64_t number(PyObject* of, PyObject* word, int64_t high = INT16_MAX) {
  return number_within(get(of, word).ptr(), high);
}
// Read attributes once a run: looked up anew they cost ten times as much where the caches are cold.
Stage stage_of(PyObject* object) {
  for (const Stage& known : run.stages)
    if (known.object == object) return known;
  const int64_t index = number(object, words().stage_index);
  const Stage s{object, static_cast<int16_t>(index),
                index + 1 == number(object, words().num_stages, INT16_MAX + 1),
                number(object, words().has_backward) != 0};
  if (run.owner != nullptr) run.stages.push_back(s);
  return s;
}

// Count and drop errors of the hook; the program's own exception is kept.
template <typename F>
bool guarded(State& s, F&& f) {
  py::error_scope programs;
  try {
    f();
    return true;
  } catch (const std::exception&) {  // a Python error too
    s.errors += 1;
    return false;
  }
}

// The State, if the hooks are in place and on.
State* on() {
  State* s = current.load(std::memory_order_acquire);
  return s != nullptr && registered != nullptr && s->level.load() > 0 ? s : nullptr;
}
bool quiet(const State* s) {
  return s != nullptr && run.owner != nullptr && run.owner->state == s && s->quick.load() &&
         !s->closed.load() && !s->slow.load();
}

// Write the pending forward; with `t1` its loss is computed.
void flush(int64_t t1 = 0) {
  if (std::exchange(run.pending, nullptr) == nullptr) return;
  if (t1 != 0) run.forward.t1 = t1;
  if (const SpanPtr span = std::exchange(run.on_device, nullptr); span) {
    if (run.forward.flags & kFailed) span->device.drop(span);
    else if (span->device.end_as(span, run.forward)) run.forward.flags |= kTimed;
  }
  run.owner->state->ring.write(run.forward);
  run.owner->show(run.forward.step, run.phase, 0, -1, -1, run.forward.t1);
}

constexpr const char* kVerbs[] = {"F", "B", "I", "W", "REDUCE_GRAD"};

struct Act {
  int verb = -1;  // -1: not an action
  int16_t mb = -1;
  Stage stage{};
  uint32_t name_id = 0;
};

// backward_one_chunk(bwd_chunk_id, loss=None, full_backward=True, last_backward=False)
bool full_backward(PyObject* const* args, Py_ssize_t num, PyObject* names) {
  for (Py_ssize_t i = 0; names != nullptr && i < PyTuple_GET_SIZE(names); i++)
    if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), "full_backward") == 0)
      return PyObject_IsTrue(args[num + i]) == 1;
  return num < 4 || PyObject_IsTrue(args[3]) == 1;
}

Act act_of(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  Act a;
  a.stage = stage_of(args[0]);
  if (q.letter != 'R') a.mb = static_cast<int16_t>(number_within(args[1], INT16_MAX));
  if (q.letter == 'F' || q.letter == 'R')
    a.verb = q.letter == 'F' ? 0 : 4;
  else if (a.stage.has_backward)
    a.verb = q.letter == 'W' ? 3 : full_backward(args, num, names) ? 1 : 2;
  if (a.verb < 0) return a;
  uint32_t& id = run.owner->verbs[a.verb];
  if (id == 0)
    id = get(run.core, words().defs).attr("name")(kVerbs[a.verb]).cast<uint32_t>();
  a.name_id = id;
  return a;
}

// Return to Python the actions that ran since the last call: pipeline_actions.Actions keeps them.
void pull(Owner& o, py::dict counts, py::list done) {
  for (const auto& [verb, stage, mb] : std::exchange(o.noted, {})) {
    const py::tuple key = py::make_tuple(kVerbs[verb], stage);
    PyObject* before = PyDict_GetItemWithError(counts.ptr(), key.ptr());
    counts[key] = (before == nullptr ? 0 : PyLong_AsLongLong(before)) + 1;
    if (verb == 4) continue;
    const auto text =
        py::reinterpret_steal<py::object>(PyUnicode_FromFormat("%d%s%d", stage, kVerbs[verb], mb));
    if (!text || PyList_Append(done.ptr(), text.ptr()) != 0) throw py::error_already_set();
  }
}

PyObject* act(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  flush();
  State* s = on();
  Act a;
  if (num < (q.letter == 'R' ? 1 : 2) || !quiet(s) ||
      !guarded(*s, [&] { a = act_of(q, args, num, names); }))
    return PyObject_Vectorcall(q.python, args, num, names);
  if (a.verb < 0) return PyObject_Vectorcall(q.original, args, num, names);
  Owner& owner = *run.owner;
  const int64_t t0 = now_ns();
  owner.inside += 1;
  owner.show(s->step, run.phase, a.name_id, a.stage.index, a.mb, t0);
  Device* device = s->device.load();
  const SpanPtr on_device = device == nullptr ? nullptr : device->begin_full(t0);
  PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
  const int64_t t1 = now_ns();
  owner.inside -= 1;
  Record r{};
  r.kind = kAction, r.lane = kLaneCompute, r.flags = result == nullptr ? kFailed : 0;
  r.name_id = a.name_id, r.t0 = t0, r.t1 = t1, r.step = s->step, r.group_id = kNoGroup;
  r.stage = a.stage.index, r.mb = a.mb, r.peer = -1;
  run.forward = r, run.pending = args[0], run.on_device = on_device;
  if (result != nullptr && a.verb == 0 && a.stage.has_backward && a.stage.last)
    owner.show(r.step, run.phase, 0, -1, -1, t1);  // its loss comes next
  else
    flush();
  if (result != nullptr) guarded(*s, [&] { owner.noted.emplace_back(a.verb, a.stage.index, a.mb); });
  s->own_ns += t0 - entered + now_ns() - t1, s->own_calls += 2;
  return result;
}

// Hook _maybe_compute_loss(stage, ...): the last stage's forward ends with it.
PyObject* loss(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  State* s = on();
  bool last = true;
  if (num > 1 && run.pending == args[1]) {
    PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
    flush(now_ns());
    return result;
  }
  if (num > 1 && quiet(s))
    guarded(*s, [&] { last = stage_of(args[1]).last; });
  return PyObject_Vectorcall(last ? q.python : q.original, args, num, names);
}

// Hook get_fwd_recv_ops(mb) and its like: label the ops by stage and microbatch for their issue.
PyObject* messages(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  State* s = on();
  if (s == nullptr || num != 2 || names != nullptr)
    return PyObject_Vectorcall(q.python, args, num, names);
  PyObject* ops = PyObject_Vectorcall(q.original, args, num, names);
  if (ops == nullptr || !PyList_Check(ops) || PyList_GET_SIZE(ops) == 0) return ops;
  const int64_t t0 = now_ns();
  guarded(*s, [&] {
    const Label label{q.letter, stage_of(args[0]).index,
                      static_cast<int16_t>(number_within(args[1], INT16_MAX))};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ops); i++) {
      const py::object tensor = get(PyList_GET_ITEM(ops, i), words().tensor);
      if (!THPVariable_Check(tensor.ptr())) continue;
      const void* data = THPVariable_Unpack(tensor.ptr()).data_ptr();
      s->prepared(data, q.send, label);
    }
  });
  s->own_ns += now_ns() - t0, s->own_calls += 1;
  return ops;
}

void run_begins(Owner& o, const py::object& core, uint32_t phase) {
  if (run.depth++ == 0)
    run.owner = &o, run.core = core.inc_ref().ptr(), run.phase = phase, run.stages.clear();
  o.noted.clear();
}

void run_ended(Owner&) {
  flush();
  if (run.depth == 0 || --run.depth > 0) return;
  run.owner = nullptr;
  Py_CLEAR(run.core);
}

}  // namespace
}  // namespace pardbg
