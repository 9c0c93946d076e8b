// What FSDP2 does with a unit (hooks/training/fsdp), seen without Python once the unit is known
// there. Included by module.hpp; all of it runs with the GIL.

#pragma once

#include "phases.hpp"

namespace pardbg {
namespace {

constexpr uint8_t kFsdp = 12;

struct Unit {
  PyObject *ref, *kept;  // weak reference to the FSDPParamGroup; fsdp.Unit
  uint32_t names[4];     // by the letter's place in kVerbsOfUnits; 0: not known yet
};
constexpr std::string_view kVerbsOfUnits = "uwrp";  // unshard, wait unshard, reshard, reduce

struct Units {
  PyObject *named = nullptr, *unsharded = nullptr;  // fsdp.named; ShardedState.UNSHARDED
  Py_ssize_t num_bytes = 0, resharded_ns = 0, whole = 0, gathered_bytes = 0;
  std::unordered_map<const PyObject*, Unit> known;
  void forget() {
    for (auto& [_, unit] : known) Py_DECREF(unit.ref), Py_DECREF(unit.kept);
    known.clear();
  }
};
Units& units() {
  static Units* const all = new Units;  // not destroyed: Python may be gone by then
  return *all;
}

void knows_units(const py::object& unit, const py::object& context, py::object named,
                 py::object unsharded) {
  Units& all = units();
  all.num_bytes = slot(unit, "num_bytes"), all.resharded_ns = slot(unit, "resharded_ns");
  all.whole = slot(unit, "whole"), all.gathered_bytes = slot(context, "gathered_bytes");
  all.named = named.release().ptr(), all.unsharded = unsharded.release().ptr();
}

// What is known of a unit, with the name of this verb of it; nullptr: Python does not know it yet.
const Unit* unit_of(PyObject* object, size_t verb, char letter) {
  Units& all = units();
  auto found = all.known.find(object);
  if (found != all.known.end() && !refers_to(found->second.ref, object)) {
    Py_DECREF(found->second.ref), Py_DECREF(found->second.kept);
    all.known.erase(found), found = all.known.end();
  }
  if (found != all.known.end() && found->second.names[verb] != 0) return &found->second;
  if (all.named == nullptr) return nullptr;
  const py::object said =
      py::handle(all.named)(py::handle(loop.context), py::handle(object), std::string(1, letter));
  if (said.is_none()) return nullptr;
  const auto [kept, id] = said.cast<std::pair<py::object, uint32_t>>();
  if (found == all.known.end()) {
    auto ref = py::reinterpret_steal<py::object>(PyWeakref_NewRef(object, nullptr));
    if (!ref) throw py::error_already_set();
    found = all.known.emplace(object, Unit{ref.release().ptr(), kept.inc_ref().ptr(), {}}).first;
  }
  found->second.names[verb] = id;
  return &found->second;
}

// FSDPParamGroup.is_unsharded, without a call into Python.
bool is_unsharded(PyObject* unit) {
  return get(unit, words()._sharded_state).ptr() == units().unsharded;
}

// Will the call do anything? FSDP makes them in pairs, and most find it done.
bool moves(PyObject* unit, char letter) {
  const bool gathering = get(unit, words()._all_gather_result).ptr() != Py_None;
  if (letter == 'w') return gathering;
  if (letter == 'p') return PyObject_IsTrue(get(unit, words().reduce_grads).ptr()) == 1;
  const bool whole = is_unsharded(unit);
  return letter == 'u' ? !gathering && !whole : whole;
}

struct Move {
  char letter;
  int64_t t0, t1;
  uint32_t name_id;
  bool failed;
};
void moved(State& s, PyObject* x, PyObject* unit, PyObject* kept, Move m) {
  const Units& all = units();
  const int64_t num_bytes = integer(at(kept, all.num_bytes));
  const bool whole = is_unsharded(unit);
  if (whole != yes(kept, all.whole)) {
    const int64_t gathered = integer(at(x, all.gathered_bytes));
    put(kept, all.whole, Py_NewRef(whole ? Py_True : Py_False));
    put(x, all.gathered_bytes, PyLong_FromLongLong(gathered + (whole ? num_bytes : -num_bytes)));
  }
  if (m.letter == 'r') {
    if (whole) return;  // kept for backward
    put(kept, all.resharded_ns, PyLong_FromLongLong(m.t1));
  } else if (m.letter == 'p') {  // it resharded first, which has a record of its own
    m.t0 = std::max(m.t0, integer(at(kept, all.resharded_ns)));
  }
  if (s.level.load() < 2) return;
  Record r = span(s, kFsdp, kLaneComm, m.name_id, m.t0, m.t1);
  if (m.failed) r.flags = kFailed;
  r.a = num_bytes, r.b = integer(at(x, all.gathered_bytes));
  s.ring.write(r);
}

// FSDPParamGroup's unshard, wait_for_unshard, reshard, post_backward.
PyObject* unit(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  State* s = usual();
  const size_t verb = kVerbsOfUnits.find(q.letter);
  py::object kept, context;
  uint32_t name_id = 0;
  bool any = false;
  const bool ours = s != nullptr && num > 0 && guarded(*s, [&] {
    const Unit* known = unit_of(args[0], verb, q.letter);
    if (known == nullptr) return;
    kept = py::reinterpret_borrow<py::object>(known->kept), name_id = known->names[verb];
    context = py::reinterpret_borrow<py::object>(loop.context);
    any = moves(args[0], q.letter);
  });
  if (!ours || !kept) return python(q, args, num, names);
  if (!any) return PyObject_Vectorcall(q.original, args, num, names);
  const int64_t t0 = now_ns();
  PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
  const int64_t t1 = now_ns();
  guarded(*s, [&] {
    moved(*s, context.ptr(), args[0], kept.ptr(), {q.letter, t0, t1, name_id, result == nullptr});
  });
  s->own_ns += t0 - entered + now_ns() - t1, s->own_calls += 2;
  return result;
}

// FSDPState's _root_pre_forward (b) and _register_pre_backward_hook (e): Python's where the root's
// forward begins and ends, and nobody's for the other units.
PyObject* root(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  State* s = usual();
  bool theirs = s == nullptr || num == 0;
  if (!theirs)
    theirs = !guarded(*s, [&] {
      const py::object outer = get(get(args[0], words()._state_ctx).ptr(), words().iter_forward_root);
      theirs = outer.ptr() == (q.letter == 'b' ? Py_None : args[0]);
    }) || theirs;
  return theirs ? python(q, args, num, names) : PyObject_Vectorcall(q.original, args, num, names);
}

}  // namespace
}  // namespace pardbg
