// Python bindings of the hot path. Included at the end of hotpath.cpp: one translation unit.

#pragma once

namespace pardbg {
namespace {

struct Owner {  // owner of one Core's state; both live until the process ends
  Owner(py::buffer ring, uint64_t offset, uint64_t status, uint64_t newest, uint64_t now,
        uint64_t capacity, py::object python)
      : fallback(std::move(python)) {
    kept = new py::buffer_info(ring.request(true));  // keeps the ring mapped
    char* base = static_cast<char*>(kept->ptr);
    state = new State(base + offset, capacity, 0, base + status, base + newest);
    status_now = base + now;
  }
  // wire.STATUS_NOW, "<qIIhhiq": the rank's current state.
  void show(int64_t step, uint32_t phase, uint32_t action, int16_t stage, int16_t mb, int64_t t) {
    char block[32] = {};
    std::memcpy(block, &step, 8), std::memcpy(block + 8, &phase, 4);
    std::memcpy(block + 12, &action, 4), std::memcpy(block + 16, &stage, 2);
    std::memcpy(block + 18, &mb, 2), std::memcpy(block + 24, &t, 8);
    std::memcpy(status_now, block, sizeof block);
  }
  State* state;
  char* status_now;
  int inside = 0;  // running pipeline actions; like the following, under the GIL
  std::vector<std::tuple<int, int, int>> noted;  // finished (verb, stage, microbatch)
  uint32_t verbs[5] = {};  // name ids of pipeline.hpp's; 0: not defined yet
  py::buffer_info* kept;
  py::object fallback;  // ring.Ring.record, for values too large for a record
  py::object python_ended, python_now;  // Python's original span_ended and now
};

// Read the integers of a call. False: one is out of bounds, so Python's function is called.
template <int Num>
bool read_numbers(PyObject* const* args, Py_ssize_t num, const int64_t (&low)[Num],
           const int64_t (&high)[Num], int64_t (&v)[Num]) {
  if (num != Num) return false;
  for (int i = 0; i < Num; i++) {
    int overflow = 0;
    if (!PyLong_Check(args[i])) return false;
    v[i] = PyLong_AsLongLongAndOverflow(args[i], &overflow);
    if (overflow != 0 || v[i] < low[i] || v[i] > high[i]) return false;
  }
  return true;
}

// ring.Ring.record, with the same arguments. Values too large go to Python's, which clamps them.
PyObject* record(PyObject* self, PyObject* const* args, Py_ssize_t num) {
  Owner& owner = *static_cast<Owner*>(PyCapsule_GetPointer(self, nullptr));
  static const int64_t low[] = {0, 0, 0, 0, INT64_MIN, INT64_MIN, 0, 0, 0, -32768, -32768, -32768,
                                INT64_MIN, INT64_MIN};
  static const int64_t high[] = {255, 255, 65535, UINT32_MAX, INT64_MAX, INT64_MAX, UINT32_MAX,
                                 UINT32_MAX, 65535, 32767, 32767, 32767, INT64_MAX, INT64_MAX};
  int64_t v[14];
  if (!read_numbers(args, num, low, high, v))
    return PyObject_Vectorcall(owner.fallback.ptr(), args, num, nullptr);
  Record r{};
  r.kind = v[0], r.lane = v[1], r.flags = v[2], r.name_id = v[3], r.t0 = v[4], r.t1 = v[5];
  r.step = v[6], r.seq = v[7], r.group_id = v[8], r.stage = v[9], r.mb = v[10], r.peer = v[11];
  r.a = v[12], r.b = v[13];
  owner.state->ring.write(r);
  Py_RETURN_NONE;
}

// ring.Ring.span_ended: the record of an action or a phase, and the status after it, in one call.
PyObject* ended(PyObject* self, PyObject* const* args, Py_ssize_t num) {
  Owner& owner = *static_cast<Owner*>(PyCapsule_GetPointer(self, nullptr));
  static const int64_t low[] = {0, 0, 0, 0, INT64_MIN, INT64_MIN, 0, -32768, -32768, INT64_MIN, 0};
  static const int64_t high[] = {255, 255, 65535, UINT32_MAX, INT64_MAX, INT64_MAX, UINT32_MAX,
                                 32767, 32767, INT64_MAX, UINT32_MAX};
  int64_t v[11];
  if (!read_numbers(args, num, low, high, v))
    return PyObject_Vectorcall(owner.python_ended.ptr(), args, num, nullptr);
  Record r{};
  r.kind = v[0], r.lane = v[1], r.flags = v[2], r.name_id = v[3], r.t0 = v[4], r.t1 = v[5];
  r.step = v[6], r.group_id = kNoGroup, r.stage = v[7], r.mb = v[8], r.peer = -1, r.a = v[9];
  owner.state->ring.write(r);
  owner.show(v[6], v[10], 0, -1, -1, v[5]);
  Py_RETURN_NONE;
}

// ring.Status.now.
PyObject* now(PyObject* self, PyObject* const* args, Py_ssize_t num) {
  Owner& owner = *static_cast<Owner*>(PyCapsule_GetPointer(self, nullptr));
  static const int64_t low[] = {INT64_MIN, 0, 0, -32768, -32768, INT64_MIN};
  static const int64_t high[] = {INT64_MAX, UINT32_MAX, UINT32_MAX, 32767, 32767, INT64_MAX};
  int64_t v[6];
  if (!read_numbers(args, num, low, high, v))
    return PyObject_Vectorcall(owner.python_now.ptr(), args, num, nullptr);
  owner.show(v[0], v[1], v[2], v[3], v[4], v[5]);
  Py_RETURN_NONE;
}

PyCFunction fast(PyObject* (*f)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(f));
}
PyMethodDef record_def = {"record", fast(&record), METH_FASTCALL, nullptr};
PyMethodDef ended_def = {"span_ended", fast(&ended), METH_FASTCALL, nullptr};
PyMethodDef now_def = {"now", fast(&now), METH_FASTCALL, nullptr};

// A row of pardbg_agent.tables.c10d_ops.
Spec spec_of(const py::handle& op, int number) {
  const auto place = [&](const char* name) { return op.attr(name).cast<int>(); };
  const auto is = [&](const char* name) { return op.attr(name).cast<bool>(); };
  return Spec{number, place("group"), place("root"), place("tag"), place("is_async"), place("reduce"),
              place("input"), place("output"), is("p2p"), is("send"), is("future"),
              is("functional"), is("probed"), is("gathers"), !op.attr("parts").is_none(),
              op.attr("torch_name").cast<std::string>(), op.attr("kind").cast<std::string>()};
}

struct Labels {  // Context.labels
  State* state;
};
struct Choice {  // late_inputs.Choice
  State* state;
};

py::tuple row(const Open& o) {
  return py::make_tuple(o.group->key, o.group_id, o.op, o.seq, o.p2p, o.send, o.peer, o.tag,
                        o.order, o.name_id, o.t0, o.a, o.b);
}

}  // namespace
}  // namespace pardbg

#include "pipeline.hpp"

#include "phases.hpp"
#include "fsdp.hpp"

namespace pardbg {
namespace {

PyObject* quick(PyObject* self, PyObject* const* args, Py_ssize_t num, PyObject* names) {
  const Quick& q = *static_cast<Quick*>(PyCapsule_GetPointer(self, nullptr));
  switch (q.kind) {
    case 'a': return act(q, args, num, names);
    case 'l': return loss(q, args, num, names);
    case 'm': return messages(q, args, num, names);
    case 'f': return forward(q, args, num, names);
    case 'b': return backward(q, args, num, names);
    case 'u': return unit(q, args, num, names);
    case 'o': return optimizer_begins(q, args, num, names);
    default: return optimizer_ended(q, args, num, names);
  }
}
PyMethodDef quick_def = {"quick", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&quick)),
                         METH_FASTCALL | METH_KEYWORDS, nullptr};

// Return a function that replaces `python`, which is `original` with its hook, or a hook alone.
py::object quick_of(py::object original, py::object python, char kind, char letter, bool send) {
  const py::capsule self(
      new Quick{original.release().ptr(), python.release().ptr(), kind, letter, send}, [](void* p) {
        const auto* q = static_cast<Quick*>(p);
        Py_DECREF(q->original);
        Py_DECREF(q->python);
        delete q;
      });
  return py::reinterpret_steal<py::object>(PyCFunction_New(&quick_def, self.ptr()));
}

}  // namespace
}  // namespace pardbg

namespace pardbg {
namespace {

// Times on a device, as hooks/device uses them from Python.
void bind_device(py::module_& m) {
  using Stream = std::optional<c10::Stream>;
  py::class_<Span, SpanPtr>(m, "Span")
      .def_readonly("begin_ns", &Span::begin_ns)
      .def_readonly("end_ns", &Span::end_ns)
      .def_readonly("error_ns", &Span::error_ns)
      .def_readwrite("issued_ns", &Span::issued_ns)
      .def_property_readonly("lead_ns", [](Span& s) { return s.begin_ns - s.issued_ns; });
  // Without the GIL: another thread may hold the driver's lock for long.
  py::class_<c10::Event, std::shared_ptr<c10::Event>>(m, "Event", py::module_local())
      .def(py::init([](c10::Device device) {
        return std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
      }))
      .def("record", torch::wrap_pybind_function_no_gil(
                         [](c10::Event& e, c10::Stream stream) { e.record(stream); }))
      .def("query", torch::wrap_pybind_function_no_gil([](const c10::Event& e) { return e.query(); }))
      .def("synchronize",
           torch::wrap_pybind_function_no_gil([](const c10::Event& e) { e.synchronize(); }))
      .def("elapsed_time",
           torch::wrap_pybind_function_no_gil([](const c10::Event& a, const c10::Event& b) {
             return a.elapsedTime(b);
           }));
  py::class_<Device, std::unique_ptr<Device, py::nodelete>>(m, "Device")
      .def(py::init([](c10::Device device, py::function own_stream, bool waits_beside,
                       size_t is_capturing, size_t last_error, size_t max_events, size_t max_lanes, size_t kept_anchors, double wander,
                       double resolution_ns) {
        const Limits limits{max_events, max_lanes, kept_anchors, wander, resolution_ns};
        return new Device(device, std::move(own_stream), waits_beside,
                          {reinterpret_cast<int (*)(void*, int*)>(is_capturing),
                           reinterpret_cast<int (*)()>(last_error)}, limits);
      }))
      .def("add_anchor", &Device::add_anchor)
      .def("capturing", &Device::capturing)
      .def("begin", [](Device& d, int64_t issued_ns, const Stream& stream) {
        return d.begin(issued_ns, nullptr, stream);
      }, py::arg("issued_ns"), py::arg("stream") = py::none())
      .def("end", &Device::end, py::arg("span"), py::arg("stream") = py::none())
      .def("end_with", [](Device& d, const SpanPtr& span, const c10::intrusive_ptr<c10d::Work>& work,
                          int group_id, int peer) { return d.end_with(span, *work, group_id, peer); })
      .def("ended", [](Device& d, const SpanPtr& span, uint8_t lane, uint32_t name_id, uint32_t step,
                        int16_t stage, int16_t mb, const Stream& stream) {
        Record r{};
        r.lane = lane, r.name_id = name_id, r.step = step, r.group_id = kNoGroup;
        r.stage = stage, r.mb = mb, r.peer = -1;
        return d.end_as(span, r, stream);
      })
      .def("drop", &Device::drop)
      .def("next", [](Device& d, const std::string& what, const SpanPtr& span) {
        if (what == "phase" && span) d.computes_here();
        return std::exchange(what == "phase" ? d.phase : d.step, span);
      })
      .def("batch_issued", [](Device&, const py::object& work) { batch_issued(work); })
      .def("batch_refused", [](Device&) { batch_refused(); })
      .def("poll", &Device::poll, py::call_guard<py::gil_scoped_release>())
      .def("close", &Device::close)
      .def_readonly("lead_ns", &Device::lead_ns)
      .def_readonly("newest_ns", &Device::newest_ns)
      .def("take_gaps", [](Device& d) { return std::pair{d.take(d.captured), d.take(d.refused)}; })
      .def_property_readonly("num_left_out", &Device::num_left_out)
      .def_property_readonly("num_in_flight", &Device::num_in_flight)
      .def_property_readonly("failure", &Device::failure);
}

}  // namespace
}  // namespace pardbg

PYBIND11_MODULE(_hotpath, m) {
  using namespace pardbg;
  bind_device(m);
  m.def("install", &install);
  m.def("uninstall", &uninstall);
  m.def("knows_torch", [] {  // torch's classes are ours too: the same pybind11 on both sides
    return py::detail::get_type_info(typeid(c10d::Work)) != nullptr &&
           py::detail::get_type_info(typeid(c10d::ProcessGroup)) != nullptr;
  });
  m.def("set_up", [](py::object ask, py::object waited, const py::list& ops,
                     std::vector<std::string> programs, std::vector<std::string> libraries) {
    ask_python = new py::object(std::move(ask)), slow_waited = new py::object(std::move(waited));
    code_files() = {std::move(programs), std::move(libraries)};
    specs().reserve(ops.size());  // kernels point to the rows
    for (const py::handle row : ops) specs().push_back(spec_of(row, int(specs().size())));
  });
  m.def("turn_off", [] { agent_off = true; });
  m.attr("Nesting") = py::handle(reinterpret_cast<PyObject*>(held_type<Nesting>()));
  m.attr("LoopState") = py::handle(reinterpret_cast<PyObject*>(held_type<LoopState>()));
  m.attr("UnitState") = py::handle(reinterpret_cast<PyObject*>(held_type<UnitState>()));
  m.def("forked", [] {
    if (State* s = current.exchange(nullptr)) s->gone = true;
    agent_off = thread_known = false;
    for (Slot& slot : slots)  // slots of threads that the child does not have
      if (&slot != own_slot.slot) slot.thread = 0;
    run = Run{}, attached = Attached{}, units().known.clear();
  });
  m.def("wait_of", [](py::object original) {
    auto f = py::reinterpret_steal<py::object>(PyCFunction_New(&wait_def, original.ptr()));
    return py::reinterpret_steal<py::object>(PyInstanceMethod_New(f.ptr()));
  });
  m.def("quick", &quick_of);
  m.def("method", [](const py::object& function) {
    return py::reinterpret_steal<py::object>(PyInstanceMethod_New(function.ptr()));
  });
  m.def("register_callbacks", &register_callbacks);
  m.def("register_units", &register_units);
  m.def("can_sketch", &can_sketch);
  m.def("sketch", &sketch, py::call_guard<py::gil_scoped_release>());
  m.def("turn", &turn, py::call_guard<py::gil_scoped_release>());
  m.def("detach", [] { detach(), units().forget(); });
  py::class_<Labels>(m, "Labels")
      .def("__bool__", [](Labels& l) { return l.state->num_labels.load() > 0; })
      .def("__setitem__", [](Labels& l, std::pair<uintptr_t, bool> key,
                             const std::tuple<char, int16_t, int16_t>& known) {
        const auto& [letter, stage, mb] = known;
        l.state->prepared(reinterpret_cast<const void*>(key.first), key.second,
                          Label{letter, stage, mb});
      })
      .def("pop", [](Labels& l, std::pair<uintptr_t, bool> key, py::object otherwise) -> py::object {
        Label found;
        {
          std::lock_guard<std::mutex> guard(l.state->lock);
          found = l.state->label_of(reinterpret_cast<const void*>(key.first), key.second, true);
        }
        if (!found.letter) return otherwise;
        return py::make_tuple(std::string(1, found.letter), found.stage, found.mb);
      })
      .def("clear", [](Labels& l) {
        std::lock_guard<std::mutex> guard(l.state->lock);
        l.state->labels.clear(), l.state->num_labels = 0;
      });
  py::class_<Choice>(m, "Choice")
      .def("due", [](Choice& l, uint32_t step, const std::string& group, bool send) {
        return l.state->looks.due(step, l.state->table.group(group), send);
      })
      .def("spend", [](Choice& l, int64_t ns) { l.state->looks.spend(ns); })
      .def_property("captured", [](Choice& l) { return l.state->looks.captured.load(); },
                    [](Choice& l, bool is) { l.state->looks.captured = is; })
      .def_property_readonly("every", [](Choice& l) { return l.state->looks.every(); });
  py::class_<Owner>(m, "Table", py::dynamic_attr())
      .def(py::init<py::buffer, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, py::object>())
      // Take over this Core's ops and the ring's indices. Python's writer is switched over
      // at once: it may be writing in other threads.
      .def("adopt", [](Owner& o, py::object ring) {
        py::cast(&o).inc_ref();  // `record` may be called as long as the process lives
        auto take = py::cpp_function([s = o.state] { return s->ring.take(); });
        auto old = ring.attr("take");
        o.state->ring.start(old().cast<uint64_t>());
        ring.attr("take") = take;
        current = o.state, agent_off = false;
        const py::capsule self(&o);
        const auto function = [&](PyMethodDef& def) {
          return py::reinterpret_steal<py::object>(PyCFunction_New(&def, self.ptr()));
        };
        o.python_ended = ring.attr("span_ended"), o.python_now = ring.attr("status").attr("now");
        ring.attr("span_ended") = function(ended_def);
        ring.attr("status").attr("now") = function(now_def);
        return function(record_def);
      })
      .def("set", [](Owner& o, int level, uint32_t step, bool closed, bool slow, bool probes,
                     bool gathers, bool quick) {
        State& s = *o.state;
        s.step = step, s.closed = closed, s.slow = slow, s.probes = probes;
        s.gathers = gathers, s.quick = quick;
        if (s.level.exchange(level) != level) set_native_until(o, py::none(), 0, 0);
      })
      .def("attach", [](Owner& o, py::object core, py::object context, py::object loop,
                        double budget) {
        units().forget();
        attach(o, std::move(core), std::move(context), std::move(loop), budget);
      })
      .def("time_on", [](Owner& o, Device* device) {  // None: stop timing ops on a device
        if (device != nullptr) device->write_to(*o.state);
        o.state->device = device;
      })
      .def("set_native_until", &set_native_until)
      .def("run_begins", &run_begins)
      .def("run_ended", &run_ended)
      .def("pull", &pull)
      .def("inside", [](Owner& o) { return o.inside; })
      .def("forget", [](Owner& o, uintptr_t group) {
        o.state->forget(reinterpret_cast<const void*>(group));
      })
      .def("cost", [](Owner& o) {
        const int64_t calls = o.state->hook_calls.load();
        const State& s = *o.state;
        return py::make_tuple(calls * kOpNs + s.own_ns.load(), calls + s.own_calls.load());
      })
      .def("place", [](Owner& o, int64_t t0) -> py::object {  // call site of the op issued at t0
        const Places::Place at = o.state->places.find(t0);
        if (at.code == nullptr) return py::none();
        return py::make_tuple(py::handle(at.code->co_filename),
                              PyCode_Addr2Line(at.code, at.offset),
                              py::handle(at.code->co_name));
      })
      .def("standing", [](Owner&) {  // thread -> "op" or "wait", for inspect.stacks
        py::dict found;
        for (const Slot& slot : slots)
          if (const int in = slot.in.load(); in != kNowhere && slot.thread.load() != 0)
            found[py::int_(slot.thread.load())] = in == kWaits ? "wait" : "op";
        return found;
      })
      .def("errors", [](Owner& o) { return o.state->errors.load(); })
      .def("sums", [](Owner& o) { return o.state->sums.take(); })
      .def("poll", [](Owner& o) {
        const auto [slow, looked] = poll(*o.state);
        py::list ended;
        for (const auto& [r, t1] : slow)
          ended.append(py::make_tuple(r.name_id, r.t0, r.step, r.seq, r.group_id, r.flags, r.stage,
                                      r.mb, r.peer, r.a, r.b, t1));
        return py::make_tuple(ended, looked);
      })
      .def_property_readonly("labels", [](Owner& o) { return Labels{o.state}; })
      .def_property_readonly("choice", [](Owner& o) { return Choice{o.state}; })
      // -- op_table.OpTable
      .def("next_seq", [](Owner& o, const std::string& key, bool p2p) {
        return o.state->table.group(key)->next[p2p].fetch_add(1);
      }, py::arg("group_key"), py::arg("p2p") = false)
      .def("counter", [](Owner& o, const std::string& key, bool p2p) {
        Group* group = o.state->table.group(key);
        return py::cpp_function([group, p2p] { return group->next[p2p].fetch_add(1); });
      }, py::arg("group_key"), py::arg("p2p") = false)
      .def("issued", [](Owner& o, const std::string& key, uint16_t group_id, const std::string& op,
                        uint32_t seq, bool p2p, bool send, int peer, int64_t tag, uint32_t name_id,
                        int64_t t0, int64_t order, int64_t a, int64_t b) {
        Table& t = o.state->table;
        Group* group = t.group(key);
        return t.issued_by_python(
            Open{group, group_id, "", seq, p2p, send, peer, tag, order, name_id, t0, a, b}, op,
            p2p ? t.edge(group, peer, tag, send) : nullptr);
      }, py::arg("group_key"), py::arg("group_id"), py::arg("op"), py::arg("seq"), py::arg("p2p"),
         py::arg("send"), py::arg("peer"), py::arg("tag"), py::arg("name_id"), py::arg("t0"),
         py::arg("order") = -1, py::arg("a") = 0, py::arg("b") = 0)
      .def("passed", [](Owner& o, const std::string& key, uint32_t seq, bool p2p, bool send,
                        int peer, int64_t tag, int64_t order) {
        Table& t = o.state->table;
        Group* group = t.group(key);
        return t.passed(group, seq, p2p ? t.edge(group, peer, tag, send) : nullptr, order);
      }, py::arg("group_key"), py::arg("seq"), py::arg("p2p"), py::arg("send"), py::arg("peer"),
         py::arg("tag"), py::arg("order") = -1)
      .def("completed", [](Owner& o, uint64_t token) { return o.state->table.completed(token); })
      .def("idle", [](Owner& o) { o.state->table.idle(); })
      .def("num_issued", [](Owner& o, const std::string& key) { return o.state->table.num_issued(key); })
      .def("num_on_edge", [](Owner& o, const std::string& key, int peer, int64_t tag, bool send) {
        int64_t found = 0;
        o.state->table.look([&](auto&, auto& edges) {
          for (const Edge& e : edges)
            if (e.group->key == key && e.peer == peer && e.tag == tag && e.send == send)
              found = e.issued;
        });
        return found;
      })
      .def_property_readonly("num_ever", [](Owner& o) { return o.state->table.newest(); })
      .def_property_readonly("revision", [](Owner& o) { return o.state->table.revision(); })
      .def("rows", [](Owner& o) {  // (open ops, [(group, issued)], [(group, peer, tag, send, n)])
        py::list ops, groups, edges;
        std::vector<std::pair<std::string, int64_t>> numbers;
        std::vector<Edge> ends;
        o.state->table.look([&](auto& g, auto& e) {  // no Python with the lock held
          for (const auto& item : g)
            if (item.second->issued >= 0) numbers.emplace_back(item.first, item.second->issued);
          ends.assign(e.begin(), e.end());
        });
        for (const Open& one : o.state->table.open()) ops.append(row(one));
        for (const auto& [key, n] : numbers) groups.append(py::make_tuple(key, n));
        for (const Edge& e : ends)
          if (e.issued) edges.append(py::make_tuple(e.group->key, e.peer, e.tag, e.send, e.issued));
        return py::make_tuple(ops, groups, edges);
      });
}
