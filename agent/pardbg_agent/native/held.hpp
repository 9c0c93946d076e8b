// State that C++ owns and Python accesses through members: one object per thread, per Core
// and per FSDP unit. hooks/context has classes with the same fields for processes without C++.

#pragma once

#include <Python.h>
#include <structmember.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace pardbg {

inline bool is_set(const PyObject* object) { return object != nullptr && object != Py_None; }

struct Nesting {  // hooked calls that enclose a thread's running code: context.Nesting
  PyObject_HEAD
  int forward, action, backward, pipeline, initializing, coalescing;
  PyObject *inside, *open, *optimizer;

  bool idle() const {
    return !(forward || action || backward || pipeline || initializing) && !is_set(inside) &&
           !is_set(open);
  }
};
inline thread_local Nesting* nesting = nullptr;  // per thread, from its first hook in Python on

struct LoopState {  // place in the training loop: context.LoopState
  PyObject_HEAD
  unsigned int phase;
  long long anchor_ns, gathered_bytes;
  char forward_seen, begun, wrapped;
  int num_schedules;
  PyObject* saved;
};

struct UnitState {  // context.UnitState
  PyObject_HEAD
  long long num_bytes, resharded_ns;
  char whole;
  PyObject* names;
};

template <typename T>
struct Fields;  // of a held type: name, members, and members that are Python objects
#define PARDBG_FIELD(type, kind, field) {#field, kind, offsetof(type, field), 0, nullptr}
template <>
struct Fields<Nesting> {
  static constexpr const char* kName = "pardbg.Nesting";
  static constexpr std::array kObjects{&Nesting::inside, &Nesting::open, &Nesting::optimizer};
  static inline PyMemberDef members[] = {
      PARDBG_FIELD(Nesting, T_INT, forward),      PARDBG_FIELD(Nesting, T_INT, action),
      PARDBG_FIELD(Nesting, T_INT, backward),     PARDBG_FIELD(Nesting, T_INT, pipeline),
      PARDBG_FIELD(Nesting, T_INT, initializing), PARDBG_FIELD(Nesting, T_INT, coalescing),
      PARDBG_FIELD(Nesting, T_OBJECT, inside),    PARDBG_FIELD(Nesting, T_OBJECT, open),
      PARDBG_FIELD(Nesting, T_OBJECT, optimizer),
      {}};
};
template <>
struct Fields<LoopState> {
  static constexpr const char* kName = "pardbg.LoopState";
  static constexpr std::array kObjects{&LoopState::saved};
  static inline PyMemberDef members[] = {
      PARDBG_FIELD(LoopState, T_UINT, phase),
      PARDBG_FIELD(LoopState, T_LONGLONG, anchor_ns),
      PARDBG_FIELD(LoopState, T_LONGLONG, gathered_bytes),
      PARDBG_FIELD(LoopState, T_BOOL, forward_seen),
      PARDBG_FIELD(LoopState, T_BOOL, begun),
      PARDBG_FIELD(LoopState, T_BOOL, wrapped),
      PARDBG_FIELD(LoopState, T_INT, num_schedules),
      PARDBG_FIELD(LoopState, T_OBJECT, saved),
      {}};
};
template <>
struct Fields<UnitState> {
  static constexpr const char* kName = "pardbg.UnitState";
  static constexpr std::array kObjects{&UnitState::names};
  static inline PyMemberDef members[] = {
      PARDBG_FIELD(UnitState, T_LONGLONG, num_bytes),
      PARDBG_FIELD(UnitState, T_LONGLONG, resharded_ns),
      PARDBG_FIELD(UnitState, T_BOOL, whole),
      PARDBG_FIELD(UnitState, T_OBJECT, names),
      {}};
};
#undef PARDBG_FIELD

template <typename T>
PyObject* new_held(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);  // all fields 0, objects None
  if constexpr (std::is_same_v<T, Nesting>) nesting = reinterpret_cast<Nesting*>(self);
  return self;
}
template <typename T>
void delete_held(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  T* held = reinterpret_cast<T*>(self);
  for (const auto field : Fields<T>::kObjects) Py_CLEAR(held->*field);
  if constexpr (std::is_same_v<T, Nesting>)
    if (nesting == held) nesting = nullptr;
  type->tp_free(self);
  Py_DECREF(type);
}

template <typename T>
PyTypeObject* held_type() {
  static PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(&new_held<T>)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(&delete_held<T>)},
                                {Py_tp_members, Fields<T>::members},
                                {0, nullptr}};
  static PyType_Spec spec = {Fields<T>::kName, sizeof(T), 0, Py_TPFLAGS_DEFAULT, slots};
  static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}
// The C++ object behind a Python one; nullptr: it is of Python's class.
template <typename T>
T* held(PyObject* object) {
  return Py_TYPE(object) == held_type<T>() ? reinterpret_cast<T*>(object) : nullptr;
}

}  // namespace pardbg
