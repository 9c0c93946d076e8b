// The methods of torch.distributed.pipelining's stages, seen without Python while nothing is out of
// the ordinary: in a schedule's run, no gate closed, no watch that looks at actions, no step of which
// activations are counted. Else their hooks in Python are called (hooks/training/pipeline), which
// write the same. Included by module.hpp; all of it runs with the GIL.

#pragma once

#include <torch/csrc/autograd/python_variable.h>

namespace pardbg {
namespace {

struct Quick {  // a method, and its hook in Python
  PyObject *original, *python;
  char kind, letter;  // a: an action, with the verb's first letter; l: loss; m: messages, F or B
  bool send;
};

struct Run {  // of this thread: a schedule's step
  Owner* owner = nullptr;
  PyObject *core = nullptr, *mine = nullptr;  // watched_rank.Core, context.State
  int depth = 0;
  const PyObject* pending = nullptr;  // the stage of a forward whose loss is still to be computed
  Record forward{};                   // and its record
  uint32_t phase = 0;
};
thread_local Run run;

struct Words {  // names of attributes
#define PARDBG_WORD(word) PyObject* const word = PyUnicode_InternFromString(#word)
  PARDBG_WORD(stage_index);
  PARDBG_WORD(num_stages);
  PARDBG_WORD(has_backward);
  PARDBG_WORD(tensor);
  PARDBG_WORD(action);
  PARDBG_WORD(inside);
  PARDBG_WORD(gate);
  PARDBG_WORD(defs);
  PARDBG_WORD(context);
  PARDBG_WORD(phase);
  PARDBG_WORD(actions);
  PARDBG_WORD(counts);
  PARDBG_WORD(pipeline);
  PARDBG_WORD(done);
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
int64_t whole(PyObject* number, int64_t high) {
  int overflow = 0;
  const int64_t v = PyLong_Check(number) ? PyLong_AsLongLongAndOverflow(number, &overflow) : -1;
  if (overflow != 0 || v < 0 || v > high) throw std::out_of_range("pipeline");
  return v;
}
int64_t number(PyObject* of, PyObject* word, int64_t high = INT16_MAX) {
  return whole(get(of, word).ptr(), high);
}
void add(PyObject* of, PyObject* word, int more) {
  const auto sum = py::reinterpret_steal<py::object>(
      PyLong_FromLongLong(PyLong_AsLongLong(get(of, word).ptr()) + more));
  if (!sum || PyObject_SetAttr(of, word, sum.ptr()) != 0) throw py::error_already_set();
}

// Whatever of ours goes wrong is counted and dropped, and an exception of the program's is kept.
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

// Write a forward; with `t1` its loss is computed.
void flush(int64_t t1 = 0) {
  if (std::exchange(run.pending, nullptr) == nullptr) return;
  if (t1 != 0) run.forward.t1 = t1;
  run.owner->state->ring.write(run.forward);
  run.owner->show(run.forward.step, run.phase, 0, -1, -1, run.forward.t1);
}

constexpr const char* kVerbs[] = {"F", "B", "I", "W", "REDUCE_GRAD"};

struct Act {
  int verb = -1;  // -1: not an action
  int64_t stage = 0, mb = -1;
  uint32_t name_id = 0;
  bool has_backward = true;
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
  a.stage = number(args[0], words().stage_index);
  if (q.letter != 'R') a.mb = whole(args[1], INT16_MAX);
  if (q.letter != 'R') a.has_backward = number(args[0], words().has_backward) != 0;
  if (q.letter == 'F' || q.letter == 'R')
    a.verb = q.letter == 'F' ? 0 : 4;
  else if (a.has_backward)
    a.verb = q.letter == 'W' ? 3 : full_backward(args, num, names) ? 1 : 2;
  if (a.verb < 0) return a;
  uint32_t& id = run.owner->verbs[a.verb];
  if (id == 0)
    id = get(run.core, words().defs).attr("name")(kVerbs[a.verb]).cast<uint32_t>();
  a.name_id = id;
  return a;
}

uint32_t phase() {
  const py::object x = get(run.core, words().context);
  return x.is_none() ? 0 : number(x.ptr(), words().phase, UINT32_MAX);
}

// What pipeline_actions.Actions keeps of those that ran.
void note(const Act& a) {
  const py::object actions = get(get(run.core, words().context).ptr(), words().actions);
  const py::object counts = get(actions.ptr(), words().counts);
  const py::tuple key = py::make_tuple(kVerbs[a.verb], a.stage);
  PyObject* before = PyDict_GetItemWithError(counts.ptr(), key.ptr());
  counts[key] = (before == nullptr ? 0 : PyLong_AsLongLong(before)) + 1;
  if (a.verb == 4) return;
  const auto said = py::reinterpret_steal<py::object>(PyUnicode_FromFormat(
      "%lld%s%lld", (long long)a.stage, kVerbs[a.verb], (long long)a.mb));
  const py::object done = get(get(run.core, words().pipeline).ptr(), words().done);
  if (!said || PyList_Append(done.ptr(), said.ptr()) != 0) throw py::error_already_set();
}

void inside(int more) {
  add(run.mine, words().action, more);
  add(get(run.core, words().gate).ptr(), words().inside, more);
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
  guarded(*s, [&] {
    inside(1);
    owner.show(s->step, phase(), a.name_id, a.stage, a.mb, t0);
  });
  PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
  const int64_t t1 = now_ns();
  guarded(*s, [&] {
    inside(-1);
    Record r{};
    r.kind = kAction, r.lane = kLaneCompute, r.flags = result == nullptr ? kFailed : 0;
    r.name_id = a.name_id, r.t0 = t0, r.t1 = t1, r.step = s->step, r.group_id = kNoGroup;
    r.stage = a.stage, r.mb = a.mb, r.peer = -1;
    run.forward = r, run.phase = phase(), run.pending = args[0];
    if (result == nullptr) return flush();
    if (a.verb == 0 && a.has_backward && a.stage + 1 == number(args[0], words().num_stages))
      owner.show(r.step, run.phase, 0, -1, -1, t1);  // its loss comes next
    else
      flush();
    note(a);
  });
  s->own_ns += t0 - entered + now_ns() - t1, s->own_calls += 2;
  return result;
}

// _maybe_compute_loss(stage, ...): the last stage's forward ends with it.
PyObject* loss(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  State* s = on();
  bool last = true;
  if (num > 1 && run.pending == args[1]) {
    PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
    flush(now_ns());
    return result;
  }
  if (num > 1 && quiet(s))
    guarded(*s, [&] {
      const auto at = number(args[1], words().stage_index);
      last = at + 1 == number(args[1], words().num_stages);
    });
  return PyObject_Vectorcall(last ? q.python : q.original, args, num, names);
}

// get_fwd_recv_ops(mb) and its like: the ops are known by stage and microbatch when they are issued.
PyObject* messages(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  State* s = on();
  if (s == nullptr || num != 2 || names != nullptr)
    return PyObject_Vectorcall(q.python, args, num, names);
  PyObject* ops = PyObject_Vectorcall(q.original, args, num, names);
  if (ops == nullptr || !PyList_Check(ops) || PyList_GET_SIZE(ops) == 0) return ops;
  const int64_t t0 = now_ns();
  guarded(*s, [&] {
    const Label label{q.letter, static_cast<int16_t>(number(args[0], words().stage_index)),
                      static_cast<int16_t>(whole(args[1], INT16_MAX))};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(ops); i++) {
      const py::object tensor = get(PyList_GET_ITEM(ops, i), words().tensor);
      if (!THPVariable_Check(tensor.ptr())) continue;
      const void* data = THPVariable_Unpack(tensor.ptr()).data_ptr();
      std::lock_guard<std::mutex> guard(s->lock);
      s->labels[{data, q.send}] = label, s->num_labels = s->labels.size();
    }
  });
  s->own_ns += now_ns() - t0, s->own_calls += 1;
  return ops;
}

PyObject* quick(PyObject* self, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const Quick& q = *static_cast<Quick*>(PyCapsule_GetPointer(self, nullptr));
  return (q.kind == 'a' ? act : q.kind == 'l' ? loss : messages)(q, args, num, names);
}
PyMethodDef quick_def = {"quick", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&quick)),
                         METH_FASTCALL | METH_KEYWORDS, nullptr};

// The method that is to stand in the place of `python`, which is `original` with its hook.
py::object quick_of(py::object original, py::object python, char kind, char letter, bool send) {
  const py::capsule self(
      new Quick{original.release().ptr(), python.release().ptr(), kind, letter, send}, [](void* p) {
        const auto* q = static_cast<Quick*>(p);
        Py_DECREF(q->original);
        Py_DECREF(q->python);
        delete q;
      });
  auto f = py::reinterpret_steal<py::object>(PyCFunction_New(&quick_def, self.ptr()));
  return py::reinterpret_steal<py::object>(PyInstanceMethod_New(f.ptr()));
}

void run_begins(Owner& o, const py::object& core, const py::object& mine) {
  if (run.depth++ == 0)
    run.owner = &o, run.core = core.inc_ref().ptr(), run.mine = mine.inc_ref().ptr();
}

void run_ended(Owner&) {
  flush();
  if (run.depth == 0 || --run.depth > 0) return;
  run.owner = nullptr;
  Py_CLEAR(run.core);
  Py_CLEAR(run.mine);
}

}  // namespace
}  // namespace pardbg
