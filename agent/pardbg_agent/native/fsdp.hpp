// FSDP2's operations on a unit (hooks/training/fsdp), recorded without Python once the unit is known
// there. Included by module.hpp; all of it runs with the GIL.

#pragma once

#include "phases.hpp"

namespace pardbg {
namespace {

constexpr uint8_t kFsdp = 12;

struct Unit {
  PyObject* ref;     // weak reference to the FSDPParamGroup
  UnitState* state;  // owned
  bool timed;        // it is on a device
  uint32_t names[4]; // ids, by the letter's index in kUnitVerbs; 0: not known yet
};
constexpr std::string_view kUnitVerbs = "uwrp";  // unshard, wait unshard, reshard, reduce

struct Units {
  // fsdp.named, fsdp.streams_of; ShardedState.UNSHARDED
  PyObject *find = nullptr, *streams = nullptr, *unsharded = nullptr;
  std::unordered_map<const PyObject*, Unit> known;
  void forget(const Unit& unit) { Py_DECREF(unit.ref), Py_DECREF(unit.state); }
  void forget() {
    for (auto& [_, unit] : known) forget(unit);
    known.clear();
  }
};
Units& units() {
  static Units* const all = new Units;  // not destroyed: Python may be gone by then
  return *all;
}

void register_units(py::object find, py::object streams, py::object unsharded) {
  units().find = find.release().ptr(), units().streams = streams.release().ptr();
  units().unsharded = unsharded.release().ptr();
}

// Return a unit for which Python has defined the name of this verb; nullptr: not yet.
const Unit* unit_of(PyObject* object, size_t verb, char letter) {
  Units& all = units();
  auto found = all.known.find(object);
  if (found != all.known.end() && !refers_to(found->second.ref, object)) {
    all.forget(found->second);
    all.known.erase(found), found = all.known.end();
  }
  if (found != all.known.end() && found->second.names[verb] != 0) return &found->second;
  if (all.find == nullptr) return nullptr;
  const py::object fields = py::handle(all.find)(py::handle(attached.context), py::handle(object),
                                                 std::string(1, letter));
  if (fields.is_none()) return nullptr;
  const auto [kept, id, timed] = fields.cast<std::tuple<py::object, uint32_t, bool>>();
  UnitState* state = held<UnitState>(kept.ptr());
  if (state == nullptr) return nullptr;
  if (found == all.known.end()) {
    auto ref = py::reinterpret_steal<py::object>(PyWeakref_NewRef(object, nullptr));
    if (!ref) throw py::error_already_set();
    kept.inc_ref();
    found = all.known.emplace(object, Unit{ref.release().ptr(), state, timed, {}}).first;
  }
  found->second.names[verb] = id;
  return &found->second;
}

// FSDPParamGroup.is_unsharded, without a call into Python.
bool is_unsharded(PyObject* unit) {
  return get(unit, words()._sharded_state).ptr() == units().unsharded;
}

// Whether the call will have an effect: FSDP calls in pairs, and most find it done.
bool does_move(PyObject* unit, char letter) {
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
  SpanPtr on_device;
  std::optional<c10::Stream> ends_on;
};
// Begin an operation's span on the device, on the streams that FSDP uses for it.
void begin_move(State& s, PyObject* object, Move& m) {
  Device* device = s.device.load();
  if (device == nullptr) return;
  std::optional<c10::Stream> begins_on;
  if (m.letter == 'u' || m.letter == 'p') {
    const py::object streams =
        py::handle(units().streams)(py::handle(object), std::string(1, m.letter));
    using Stream = std::optional<c10::Stream>;
    std::tie(begins_on, m.ends_on) = streams.cast<std::pair<Stream, Stream>>();
  }
  m.on_device = device->begin_full(m.t0, begins_on);
}
void record_move(State& s, LoopState& loop, PyObject* object, UnitState& unit, Move m) {
  const bool whole = is_unsharded(object);
  if (whole != bool(unit.whole)) {
    unit.whole = whole;
    loop.gathered_bytes += whole ? unit.num_bytes : -unit.num_bytes;
  }
  if (m.letter == 'r') {
    if (whole) {  // kept for backward
      if (m.on_device) m.on_device->device.drop(m.on_device);
      return;
    }
    unit.resharded_ns = m.t1;
  } else if (m.letter == 'p') {  // it resharded first, which has a record of its own
    m.t0 = std::max<int64_t>(m.t0, unit.resharded_ns);
    if (m.on_device) m.on_device->issued_ns = m.t0;
  }
  if (s.level.load() < 2) return;
  Record r = span(s, kFsdp, kLaneComm, m.name_id, m.t0, m.t1);
  if (m.failed) r.flags = kFailed;
  if (m.on_device && m.on_device->device.end_as(m.on_device, r, m.ends_on)) r.flags |= kTimed;
  r.a = unit.num_bytes, r.b = loop.gathered_bytes;
  s.ring.write(r);
}

// FSDPParamGroup's unshard, wait_for_unshard, reshard, post_backward.
PyObject* unit(const Quick& q, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const int64_t entered = now_ns();
  State* s = active_state();
  const size_t verb = kUnitVerbs.find(q.letter);
  py::object kept, loop;
  uint32_t name_id = 0;
  bool moves = false, timed = false;
  const bool ours = s != nullptr && num > 0 && guarded(*s, [&] {
    const Unit* known = unit_of(args[0], verb, q.letter);
    if (known == nullptr) return;
    kept = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(known->state));
    loop = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(attached.loop));
    name_id = known->names[verb], timed = known->timed;
    moves = does_move(args[0], q.letter);
  });
  if (!ours || !kept) return call_python(q, args, num, names);
  if (!moves) return PyObject_Vectorcall(q.original, args, num, names);
  Move m{q.letter, now_ns(), 0, name_id};
  if (timed) guarded(*s, [&] { begin_move(*s, args[0], m); });
  const int64_t t0 = now_ns();
  PyObject* result = PyObject_Vectorcall(q.original, args, num, names);
  m.t1 = now_ns(), m.failed = result == nullptr;
  guarded(*s, [&] {
    record_move(*s, *reinterpret_cast<LoopState*>(loop.ptr()), args[0],
                *reinterpret_cast<UnitState*>(kept.ptr()), m);
  });
  s->own_ns += t0 - entered + now_ns() - m.t1, s->own_calls += 2;
  return result;
}

}  // namespace
}  // namespace pardbg
