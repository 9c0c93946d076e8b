// A training step that is like the one before it, seen without Python: the forward of a wrapped
// model, backward and the loss it begins from, the optimizer's step and the training step's end.
//
// What a step is made of is kept where the hooks in Python keep it (hooks/training/step_phases), so
// each call may go either way. Which way is decided before anything is changed: whatever is out of
// the ordinary (a gate, a watch, a second optimizer, a step in which something is counted) is
// Python's. Included by module.hpp; all of it runs with the GIL.

#pragma once

#include <ATen/core/TensorBody.h>
#include <structmember.h>
#include <torch/csrc/autograd/function.h>

namespace pardbg {
namespace {

constexpr uint8_t kStep = 5, kPhase = 6, kMetric = 8, kLaneStep = 0, kLanePhase = 1, kCounter = 7;
constexpr uint16_t kFloat = 1, kInferred = 1024;
constexpr int64_t kMinInferredNs = 1'000;  // step_phases._MIN_INFERRED_NS

// Where Python's objects have their slots, by the classes that they are of.
struct Layout {
  Py_ssize_t forward, action, backward, pipeline, inside, open, optimizer, unscaled, initializing,
      futures;  // context.State
  Py_ssize_t phase, anchor_ns, forward_seen, begun, wrapped, saved, loss,
      of_schedules;         // context.Context
  Py_ssize_t fresh, only;  // batch_loss.BatchLoss
};

struct Loop {  // of the Core that is there
  Owner* owner = nullptr;
  PyObject *core = nullptr, *context = nullptr;
  PyObject* lone = nullptr;  // weak reference to the optimizer whose step() ends each step, or none
  int64_t step = 0, t = 0;   // Python ends this step, and the first one that ends at this time
  double budget = 0;
  uint32_t forward = 0, backward = 0, optimizer = 0, loss = 0;  // name ids; 0: not defined yet
};
Loop loop;

struct Known {  // of Python, for good
  PyObject *local, *share_of, *see_loss, *after_backward, *compiler;
  Layout at;
};
const Known* known = nullptr;

Py_ssize_t slot(const py::object& type, const char* name) {
  const py::object found = type.attr(name);
  if (Py_TYPE(found.ptr()) != &PyMemberDescr_Type) throw std::runtime_error(name);
  return reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
}
PyObject*& at(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset);
}
void put(PyObject* object, Py_ssize_t offset, PyObject* stolen) {
  if (stolen == nullptr) throw py::error_already_set();
  Py_XDECREF(std::exchange(at(object, offset), stolen));
}
bool none(PyObject* object, Py_ssize_t offset) { return at(object, offset) == Py_None; }
bool zero(PyObject* object, Py_ssize_t offset) {
  PyObject* number = at(object, offset);
  return number != nullptr && PyLong_Check(number) && PyLong_AsLong(number) == 0;
}
bool yes(PyObject* object, Py_ssize_t offset) { return at(object, offset) == Py_True; }
int64_t integer(PyObject* number) {
  const int64_t v = PyLong_AsLongLong(number);
  if (v == -1 && PyErr_Occurred()) throw py::error_already_set();
  return v;
}

bool refers_to(PyObject* ref, PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(ref, &found) < 0) PyErr_Clear();
  Py_XDECREF(found);
  return found == object;
#else
  return PyWeakref_GetObject(ref) == object;
#endif
}

// Python's classes and functions that are needed here.
void knows(py::object local, const py::object& state, const py::object& context,
           const py::object& loss, py::object share_of, py::object see_loss,
           py::object after_backward, py::object compiler) {
  known = new Known{
      local.release().ptr(), share_of.release().ptr(), see_loss.release().ptr(),
      after_backward.release().ptr(), compiler.release().ptr(),
      {slot(state, "forward"), slot(state, "action"), slot(state, "backward"),
       slot(state, "pipeline"), slot(state, "inside"), slot(state, "open"),
       slot(state, "optimizer"), slot(state, "unscaled"), slot(state, "initializing"),
       slot(state, "futures"), slot(context, "phase"), slot(context, "anchor_ns"),
       slot(context, "forward_seen"), slot(context, "begun"), slot(context, "wrapped"),
       slot(context, "saved"), slot(context, "loss"), slot(context, "of_schedules"), slot(loss, "fresh"), slot(loss, "only")}};
}

// The Core whose steps these are, and what the hooks keep of it.
void rest() {
  const Loop old = std::exchange(loop, Loop{});
  Py_XDECREF(old.core), Py_XDECREF(old.context), Py_XDECREF(old.lone);
}
void follows(Owner& o, py::object core, py::object context, double budget) {
  rest();
  loop = Loop{&o, core.release().ptr(), context.release().ptr()};
  loop.budget = budget;
}

// From here on the steps of `lone` (a weak reference, or None) end here, until Python is to look.
void until(Owner& o, py::object lone, int64_t step, int64_t t) {
  if (loop.owner != &o) return;
  Py_XDECREF(std::exchange(loop.lone, lone.is_none() ? nullptr : lone.release().ptr()));
  loop.step = step, loop.t = t;
}

uint32_t id_of(uint32_t& id, const char* text) {
  if (id == 0) id = get(loop.core, words().defs).attr("name")(text).cast<uint32_t>();
  return id;
}

// The State if this step is one to be seen here, as far as is known of the Core.
State* usual() {
  State* s = on();
  if (s == nullptr || known == nullptr || loop.owner == nullptr || loop.owner->state != s ||
      !s->quick.load() || s->closed.load() || s->slow.load())
    return nullptr;
  return PyDict_GetItem(known->compiler, words()._is_compiling_flag) == Py_True ? nullptr : s;
}

// This thread's state, where nothing encloses the code that runs.
py::object bare() {
  const Layout& l = known->at;
  py::object found = get(known->local, words().state);
  PyObject* t = found.ptr();
  const bool is = zero(t, l.forward) && zero(t, l.action) && zero(t, l.backward) &&
                  zero(t, l.pipeline) && zero(t, l.initializing) && none(t, l.inside) &&
                  none(t, l.open) && yes(loop.context, l.begun);
  return is ? found : py::object();
}

Record span(const State& s, uint8_t kind, uint8_t lane, uint32_t name_id, int64_t t0, int64_t t1) {
  Record r{};
  r.kind = kind, r.lane = lane, r.name_id = name_id, r.t0 = t0, r.t1 = t1;
  r.step = s.step.load(std::memory_order_relaxed);
  r.group_id = kNoGroup, r.stage = r.mb = r.peer = -1;
  return r;
}

void enter(PyObject* context, const State& s, uint32_t phase, int64_t t0) {
  put(context, known->at.phase, PyLong_FromUnsignedLong(phase));
  loop.owner->show(s.step, phase, 0, -1, -1, t0);
}
void leave(PyObject* context, State& s, uint32_t phase, int64_t t0, int64_t t1, bool failed) {
  Record r = span(s, kPhase, kLanePhase, phase, t0, t1);
  if (failed) r.flags = kFailed;
  s.ring.write(r);
  put(context, known->at.phase, PyLong_FromLong(0));
  loop.owner->show(s.step, 0, 0, -1, -1, t1);
}

PyObject* python(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  return PyObject_Vectorcall(q.python, args, num, names);
}

// DistributedDataParallel.forward.
PyObject* forward(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  const Layout& l = known->at;
  State* s = usual();
  py::object thread, context;
  int64_t t0 = 0;
  uint32_t phase = 0;
  const bool ours = s != nullptr && guarded(*s, [&] {
    context = py::reinterpret_borrow<py::object>(loop.context);
    thread = bare();
    if (thread && !yes(loop.context, l.wrapped)) thread = py::object();
    if (!thread) return;
    phase = id_of(loop.forward, "forward");
    enter(context.ptr(), *s, phase, t0 = now_ns());
    put(thread.ptr(), l.forward, PyLong_FromLong(1));
  });
  if (!ours || !thread) return python(q, args, num, names);
  PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
  const int64_t t1 = now_ns();
  guarded(*s, [&] {
    put(thread.ptr(), l.forward, PyLong_FromLong(0));
    put(context.ptr(), l.forward_seen, Py_NewRef(Py_True));
    leave(context.ptr(), *s, phase, t0, t1, result == nullptr);
  });
  s->own_ns += t0 - entered + now_ns() - t1, s->own_calls += 2;
  return result;
}

struct Loss {
  bool python = false, there = false;  // Python is to look at it; there is one
  double value = 0;
};

// What backward begins from, if it is one number in host memory.
Loss loss_of(PyObject* tensors) {
  if (Py_TYPE(tensors) != reinterpret_cast<PyTypeObject*>(THPVariableClass)) return {};
  const at::Tensor& t = THPVariable_Unpack(tensors);
  if (!t.defined() || !t.is_cpu() || t.numel() != 1) return {};
  PyObject* modules = PyImport_GetModuleDict();
  if (PyDict_GetItemString(modules, "torchtitan.components.loss") != nullptr) return {};
  PyObject* loss = at(loop.context, known->at.loss);
  if (!at::isFloatingType(t.scalar_type()) || !yes(loss, known->at.fresh) ||
      !none(loss, known->at.only))
    return {true};
  const auto& node = t.grad_fn();
  if (node != nullptr) {
    const std::string_view name = typeid(*node).name();
    if (name.find("MulBackward0") != name.npos || name.find("DivBackward0") != name.npos) {
      const py::object share =
          py::reinterpret_steal<py::object>(PyObject_CallOneArg(known->share_of, tensors));
      if (!share) throw py::error_already_set();
      if (PyFloat_AsDouble(share.ptr()) != 1.0) return {true};
    }
  }
  return {false, true, t.item().toDouble()};
}

// step_phases.log_loss, of the first scalar since an optimizer stepped.
void log_loss(State& s, PyObject* tensors, double value) {
  PyObject* loss = at(loop.context, known->at.loss);
  const py::float_ number(value);
  const auto of = py::reinterpret_steal<py::object>(PyWeakref_NewRef(tensors, nullptr));
  if (!of) throw py::error_already_set();
  put(loss, known->at.only, py::make_tuple(of, number, s.step.load()).release().ptr());
  if (PyObject_SetAttr(loop.core, words().loss, number.ptr()) != 0) throw py::error_already_set();
  const int64_t t = now_ns();
  Record r = span(s, kMetric, kCounter, id_of(loop.loss, "loss"), t, t);
  r.flags = kFloat | kInferred;
  std::memcpy(&r.a, &value, sizeof r.a);
  s.ring.write(r);
}

// torch.autograd.backward.
PyObject* backward(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  const Layout& l = known->at;
  State* s = usual();
  py::object thread, context;
  uint32_t phase = 0;
  const bool ours = s != nullptr && num > 0 && guarded(*s, [&] {
    context = py::reinterpret_borrow<py::object>(loop.context);
    thread = bare();
    if (!thread) return;
    PyObject *t = thread.ptr(), *x = context.ptr();
    if (!none(x, l.saved)) {
      thread = py::object();
      return;
    }
    const bool plain = none(t, l.unscaled) && none(t, l.optimizer);  // scaled, in a closure: else
    const Loss loss = plain ? loss_of(args[0]) : Loss{true};
    phase = id_of(loop.backward, "backward");
    const int64_t anchor = integer(at(x, l.anchor_ns));
    if (!yes(x, l.forward_seen) && 0 < anchor && anchor < entered - kMinInferredNs) {
      Record r = span(*s, kPhase, kLanePhase, id_of(loop.forward, "forward"), anchor, entered);
      r.flags = kInferred;
      s->ring.write(r);
    }
    if (loss.there) log_loss(*s, args[0], loss.value);
    if (loss.python)
      py::handle(known->see_loss)(py::handle(loop.core), context, py::handle(args[0]));
    enter(x, *s, phase, entered);
    put(t, l.backward, PyLong_FromLong(1));
  });
  if (!ours || !thread) return python(q, args, num, names);
  const int64_t begun = now_ns();
  PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
  const int64_t t1 = now_ns();
  guarded(*s, [&] {
    PyObject *t = thread.ptr(), *x = context.ptr();
    if (!none(x, l.saved) || PyList_GET_SIZE(at(t, l.futures)) != 0) {
      py::handle(known->after_backward)(py::handle(loop.core), entered, t1, result == nullptr);
      return;
    }
    put(t, l.backward, PyLong_FromLong(0));
    leave(x, *s, phase, entered, t1, result == nullptr);
    put(x, l.anchor_ns, PyLong_FromLongLong(t1));
    put(x, l.forward_seen, Py_NewRef(Py_False));
  });
  s->own_ns += begun - entered + now_ns() - t1, s->own_calls += 2;
  return result;
}

// The optimizer, if it is the one whose steps end here.
bool is_lone(const State& s, PyObject* optimizer) {
  return loop.lone != nullptr && refers_to(loop.lone, optimizer) &&
         s.step.load(std::memory_order_relaxed) < loop.step;
}

// step_phases' hook before an optimizer's step: (optimizer, args, kwargs).
PyObject* optimizer_begins(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  State* s = usual();
  bool done = false;
  const bool ours = s != nullptr && num > 0 && is_lone(*s, args[0]) && guarded(*s, [&] {
    const py::object thread = bare();
    if (!thread || !none(thread.ptr(), known->at.optimizer)) return;
    const uint32_t phase = id_of(loop.optimizer, "optimizer");
    const int64_t t0 = now_ns();
    put(thread.ptr(), known->at.optimizer,
        py::make_tuple(py::handle(loop.lone), t0).release().ptr());
    enter(loop.context, *s, phase, t0);
    done = true;
  });
  if (!ours || !done) return python(q, args, num, names);
  s->own_ns += now_ns() - entered, s->own_calls += 1;
  Py_RETURN_NONE;
}

// Core.step_end. False: it is Python's.
struct End {
  int64_t t0, cost, calls, spent, spent_calls;
};
bool step_end_of(State& s, int64_t t1, End& end) {
  PyObject* c = loop.core;
  if (s.level.load() < 2 || s.sums.some() || get(c, words().explicit_steps).ptr() != Py_False ||
      integer(get(c, words().step).ptr()) != s.step.load())
    return false;
  const py::object before = get(c, words().spent);
  const int64_t ops = s.hook_calls.load();
  end.t0 = integer(get(c, words().step_t0).ptr());
  end.spent = integer(get(c, words().hook_ns).ptr()) + ops * kOpNs + s.own_ns.load();
  end.spent_calls = integer(get(c, words().hook_calls).ptr()) + ops + s.own_calls.load();
  end.cost = std::max<int64_t>(0, end.spent - integer(PyTuple_GET_ITEM(before.ptr(), 0)));
  end.calls = end.spent_calls - integer(PyTuple_GET_ITEM(before.ptr(), 1));
  return loop.budget <= 0 || end.cost <= loop.budget * (t1 - end.t0);
}
void set(PyObject* word, const py::object& value) {
  if (PyObject_SetAttr(loop.core, word, value.ptr()) != 0) throw py::error_already_set();
}
void step_end(State& s, const End& end) {
  const int64_t t1 = now_ns();
  Record r = span(s, kStep, kLaneStep, 0, end.t0, t1);
  r.a = end.cost, r.b = end.calls;
  s.ring.write(r);
  const uint32_t step = s.step + 1;
  set(words().spent, py::make_tuple(end.spent, end.spent_calls));
  set(words().step_t0, py::int_(t1));
  set(words().step, py::int_(step));
  s.step = step;
  loop.owner->show(step, 0, 0, -1, -1, t1);
}

// step_phases' hook after an optimizer's step.
PyObject* optimizer_ended(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t t1 = now_ns();
  const Layout& l = known->at;
  State* s = usual();
  bool done = false;
  const bool ours = s != nullptr && num > 0 && t1 < loop.t && is_lone(*s, args[0]) &&
                    guarded(*s, [&] {
    const py::object thread = bare();
    PyObject* loss = at(loop.context, l.loss);
    if (!thread) return;
    PyObject* outer = at(thread.ptr(), l.optimizer);
    if (outer == Py_None || !refers_to(PyTuple_GET_ITEM(outer, 0), args[0])) return;
    if (!yes(loss, l.fresh)) {  // Python runs, and other threads: one may close a gate meanwhile
      get(loss, words().clear)();
      if (usual() == nullptr) return;
    }
    End end;
    if (!step_end_of(*s, t1, end)) return;
    const uint32_t phase = id_of(loop.optimizer, "optimizer");
    leave(loop.context, *s, phase, integer(PyTuple_GET_ITEM(outer, 1)), t1, false);
    put(thread.ptr(), l.optimizer, Py_NewRef(Py_None));
    put(loss, l.only, Py_NewRef(Py_None));
    put(loop.context, l.of_schedules, PyLong_FromLong(0));
    step_end(*s, end);
    put(loop.context, l.anchor_ns, PyLong_FromLongLong(now_ns()));
    put(loop.context, l.forward_seen, Py_NewRef(Py_False));
    done = true;
  });
  if (!ours || !done) return python(q, args, num, names);
  s->own_ns += now_ns() - t1, s->own_calls += 1;
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace pardbg
