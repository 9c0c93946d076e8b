// Fast path for a training step like the one before it, without Python: the forward of a wrapped
// model, backward, the optimizer's step and the training step's end.
//
// The state is held.hpp's, so a call may take either path; the choice is made before anything is
// changed. Python handles special cases: a gate, a watch, a second optimizer, a step in
// which something is counted. Included by module.hpp; all of it runs with the GIL.

#pragma once

#include "held.hpp"

namespace pardbg {
namespace {

constexpr uint8_t kStep = 5, kPhase = 6, kLaneStep = 0, kLanePhase = 1;
constexpr uint16_t kInferred = 1024;
constexpr int64_t kMinInferredNs = 1'000;  // step_phases._MIN_INFERRED_NS

struct Attached {  // the Core whose steps are handled here
  Owner* owner = nullptr;
  PyObject *core = nullptr, *context = nullptr;
  LoopState* loop = nullptr;        // the context's
  PyObject* optimizer = nullptr;    // weak reference to the optimizer that ends each step, or none
  int64_t step = 0, end_ns = 0;     // Python ends this step, and the first one that ends at this time
  double budget = 0;
  uint32_t forward_id = 0, backward_id = 0, optimizer_id = 0;  // names; 0: not defined yet
};
Attached attached;

struct Callbacks {  // step_phases' functions, and torch.compiler's variables
  PyObject *see_loss, *after_backward, *compiler;
};
const Callbacks* callbacks = nullptr;

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

int64_t integer(PyObject* number) {
  const int64_t v = PyLong_AsLongLong(number);
  if (v == -1 && PyErr_Occurred()) throw py::error_already_set();
  return v;
}

void register_callbacks(py::object see_loss, py::object after_backward, py::object compiler) {
  callbacks = new Callbacks{see_loss.release().ptr(), after_backward.release().ptr(),
                            compiler.release().ptr()};
}

void detach() {
  const Attached old = std::exchange(attached, Attached{});
  Py_XDECREF(old.core), Py_XDECREF(old.context), Py_XDECREF(old.loop), Py_XDECREF(old.optimizer);
}
void attach(Owner& o, py::object core, py::object context, py::object loop, double budget) {
  detach();
  LoopState* state = held<LoopState>(loop.ptr());
  if (state == nullptr) return;
  loop.release();
  attached = Attached{&o, core.release().ptr(), context.release().ptr(), state};
  attached.budget = budget;
}

// End the steps of `optimizer` (a weak reference; None: of none) here, until Python is due again.
void set_native_until(Owner& o, py::object optimizer, int64_t step, int64_t end_ns) {
  if (attached.owner != &o) return;
  PyObject* ref = optimizer.is_none() ? nullptr : optimizer.release().ptr();
  Py_XDECREF(std::exchange(attached.optimizer, ref));
  attached.step = step, attached.end_ns = end_ns;
}

uint32_t id_of(uint32_t& id, const char* text) {
  if (id == 0) id = get(attached.core, words().defs).attr("name")(text).cast<uint32_t>();
  return id;
}

// The State if C++ may handle this step, as far as the Core tells.
State* active_state() {
  State* s = on();
  if (s == nullptr || callbacks == nullptr || attached.owner == nullptr ||
      attached.owner->state != s || !s->quick.load() || s->closed.load() || s->slow.load())
    return nullptr;
  return PyDict_GetItem(callbacks->compiler, words()._is_compiling_flag) == Py_True ? nullptr : s;
}

// Whether no hook's span encloses the code that runs, and a first phase was seen.
bool enclosing_idle() { return nesting != nullptr && nesting->idle() && attached.loop->begun; }

// This thread's and the Core's state, kept during a call: a detach may come meanwhile.
struct Kept {
  py::object nest, state;
  Kept()
      : nest(py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(nesting))),
        state(py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(attached.loop))) {}
  Nesting* operator->() const { return reinterpret_cast<Nesting*>(nest.ptr()); }
  LoopState& loop() const { return *reinterpret_cast<LoopState*>(state.ptr()); }
};

Record span(const State& s, uint8_t kind, uint8_t lane, uint32_t name_id, int64_t t0, int64_t t1) {
  Record r{};
  r.kind = kind, r.lane = lane, r.name_id = name_id, r.t0 = t0, r.t1 = t1;
  r.step = s.step.load(std::memory_order_relaxed);
  r.group_id = kNoGroup, r.stage = r.mb = r.peer = -1;
  return r;
}

void begin_phase(LoopState& loop, const State& s, uint32_t phase, int64_t t0) {
  loop.phase = phase;
  attached.owner->show(s.step, phase, 0, -1, -1, t0);
  if (Device* device = s.device.load()) device->begin_phase(t0);
}
// End the span on the device; return the flag for the launch's record.
uint16_t end_timed(const SpanPtr& span, const Record& r) {
  return span && span->device.end_as(span, r) ? kTimed : 0;
}
void end_phase(LoopState& loop, State& s, uint32_t phase, int64_t t0, int64_t t1, bool failed) {
  Record r = span(s, kPhase, kLanePhase, phase, t0, t1);
  if (failed) r.flags = kFailed;
  if (Device* device = s.device.load())
    r.flags |= end_timed(std::exchange(device->phase, nullptr), r);
  s.ring.write(r);
  loop.phase = 0;
  if (attached.owner != nullptr) attached.owner->show(s.step, 0, 0, -1, -1, t1);
}

PyObject* call_python(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  return PyObject_Vectorcall(q.python, args, num, names);
}

// DistributedDataParallel.forward.
PyObject* forward(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  State* s = active_state();
  if (s == nullptr || !enclosing_idle() || !attached.loop->wrapped)
    return call_python(q, args, num, names);
  const Kept kept;
  int64_t t0 = 0;
  uint32_t phase = 0;
  if (!guarded(*s, [&] {
        phase = id_of(attached.forward_id, "forward");
        begin_phase(kept.loop(), *s, phase, t0 = now_ns());
        kept->forward = 1;
      }))
    return call_python(q, args, num, names);
  PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
  const int64_t t1 = now_ns();
  kept->forward = 0;
  kept.loop().forward_seen = true;
  end_phase(kept.loop(), *s, phase, t0, t1, result == nullptr);
  s->own_ns += t0 - entered + now_ns() - t1, s->own_calls += 2;
  return result;
}

// torch.autograd.backward.
PyObject* backward(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  State* s = active_state();
  if (s == nullptr || num == 0 || !enclosing_idle() || is_set(attached.loop->saved))
    return call_python(q, args, num, names);
  const Kept kept;
  LoopState& loop = kept.loop();
  const auto core = py::reinterpret_borrow<py::object>(attached.core);
  uint32_t phase = 0;
  if (!guarded(*s, [&] {
        phase = id_of(attached.backward_id, "backward");
        if (!loop.forward_seen && 0 < loop.anchor_ns && loop.anchor_ns < entered - kMinInferredNs) {
          const uint32_t id = id_of(attached.forward_id, "forward");
          Record r = span(*s, kPhase, kLanePhase, id, loop.anchor_ns, entered);
          r.flags = kInferred;
          s->ring.write(r);
        }
        py::handle(callbacks->see_loss)(core, py::handle(attached.context), py::handle(args[0]));
        begin_phase(loop, *s, phase, entered);
        kept->backward = 1;
      }))
    return call_python(q, args, num, names);
  const int64_t begun = now_ns();
  PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
  const int64_t t1 = now_ns();
  if (is_set(loop.saved)) {
    guarded(*s, [&] {
      py::handle(callbacks->after_backward)(core, entered, t1, result == nullptr);
    });
  } else {
    kept->backward = 0;
    end_phase(loop, *s, phase, entered, t1, result == nullptr);
    loop.anchor_ns = t1, loop.forward_seen = false;
  }
  s->own_ns += begun - entered + now_ns() - t1, s->own_calls += 2;
  return result;
}

// Whether the optimizer is the one whose steps end here.
bool ends_steps(const State& s, PyObject* optimizer) {
  return attached.optimizer != nullptr && refers_to(attached.optimizer, optimizer) &&
         s.step.load(std::memory_order_relaxed) < attached.step;
}

// step_phases' hook before an optimizer's step: (optimizer, args, kwargs).
PyObject* optimizer_begins(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  State* s = active_state();
  if (s == nullptr || num == 0 || !ends_steps(*s, args[0]) || !enclosing_idle() ||
      is_set(nesting->optimizer))
    return call_python(q, args, num, names);
  const Kept kept;
  if (!guarded(*s, [&] {
        const uint32_t phase = id_of(attached.optimizer_id, "optimizer");
        const int64_t t0 = now_ns();
        py::object running = py::make_tuple(py::handle(attached.optimizer), t0);
        Py_XDECREF(std::exchange(kept->optimizer, running.release().ptr()));
        begin_phase(kept.loop(), *s, phase, t0);
      }))
    return call_python(q, args, num, names);
  s->own_ns += now_ns() - entered, s->own_calls += 1;
  Py_RETURN_NONE;
}

struct StepEnd {  // Core.step_end's figures
  int64_t t0, cost, calls, spent, spent_calls;
};
// Read the figures. False: Python ends this step.
bool read_step_end(State& s, int64_t t1, StepEnd& end) {
  PyObject* c = attached.core;
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
  return attached.budget <= 0 || end.cost <= attached.budget * (t1 - end.t0);
}
void end_step(State& s, const StepEnd& end) {
  const int64_t t1 = now_ns();
  Record r = span(s, kStep, kLaneStep, 0, end.t0, t1);
  r.a = end.cost, r.b = end.calls;
  if (Device* device = s.device.load())
    r.flags = end_timed(std::exchange(device->step, device->begin_full(t1)), r);
  s.ring.write(r);
  const uint32_t step = s.step + 1;
  get(attached.core, words().count_step)(step, t1, end.spent, end.spent_calls);
  s.step = step;
  attached.owner->show(step, 0, 0, -1, -1, t1);
}

// step_phases' hook after an optimizer's step.
PyObject* optimizer_ended(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t t1 = now_ns();
  State* s = active_state();
  if (s == nullptr || num == 0 || t1 >= attached.end_ns || !ends_steps(*s, args[0]) ||
      !enclosing_idle() || !is_set(nesting->optimizer) ||
      !refers_to(PyTuple_GET_ITEM(nesting->optimizer, 0), args[0]))
    return call_python(q, args, num, names);
  const Kept kept;
  bool done = false;
  guarded(*s, [&] {
    StepEnd end;
    if (!read_step_end(*s, t1, end)) return;
    const uint32_t phase = id_of(attached.optimizer_id, "optimizer");
    const int64_t t0 = integer(PyTuple_GET_ITEM(kept->optimizer, 1));
    LoopState& loop = kept.loop();
    end_phase(loop, *s, phase, t0, t1, false);
    Py_CLEAR(kept->optimizer);
    loop.num_schedules = 0;
    end_step(*s, end);
    loop.anchor_ns = now_ns(), loop.forward_seen = false;
    done = true;
  });
  if (!done) return call_python(q, args, num, names);
  s->own_ns += now_ns() - t1, s->own_calls += 1;
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace pardbg
