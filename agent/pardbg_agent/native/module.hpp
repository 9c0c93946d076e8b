// What Python sees of the hot path. Included at the end of hotpath.cpp: one translation unit.

#pragma once

namespace pardbg {
namespace {

PyObject* record(PyObject* self, PyObject* const* args, Py_ssize_t num);
PyMethodDef record_def = {"record", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&record)),
                          METH_FASTCALL, nullptr};

struct Owner {  // of one Core's state; both live until the process ends
  Owner(py::buffer ring, uint64_t offset, uint64_t status, uint64_t capacity, py::object python)
      : fallback(std::move(python)) {
    kept = new py::buffer_info(ring.request(true));  // keeps the ring mapped
    char* base = static_cast<char*>(kept->ptr);
    state = new State(base + offset, capacity, 0, base + status);
  }
  State* state;
  py::buffer_info* kept;
  py::object fallback;  // ring.Ring.record, for values that fit no record
};

// ring.Ring.record, called as that one. What does not fit goes to Python's, which makes it fit.
PyObject* record(PyObject* self, PyObject* const* args, Py_ssize_t num) {
  Owner& owner = *static_cast<Owner*>(PyCapsule_GetPointer(self, nullptr));
  static const int64_t low[] = {0, 0, 0, 0, INT64_MIN, INT64_MIN, 0, 0, 0, -32768, -32768, -32768,
                                INT64_MIN, INT64_MIN};
  static const int64_t high[] = {255, 255, 65535, UINT32_MAX, INT64_MAX, INT64_MAX, UINT32_MAX,
                                 UINT32_MAX, 65535, 32767, 32767, 32767, INT64_MAX, INT64_MAX};
  int64_t v[14];
  bool fits = num == 14;
  for (int i = 0; fits && i < 14; i++) {
    int overflow = 0;
    fits = PyLong_Check(args[i]);
    if (!fits) break;
    v[i] = PyLong_AsLongLongAndOverflow(args[i], &overflow);
    fits = overflow == 0 && v[i] >= low[i] && v[i] <= high[i];
  }
  if (!fits) return PyObject_Vectorcall(owner.fallback.ptr(), args, num, nullptr);
  Record r{};
  r.kind = v[0], r.lane = v[1], r.flags = v[2], r.name_id = v[3], r.t0 = v[4], r.t1 = v[5];
  r.step = v[6], r.seq = v[7], r.group_id = v[8], r.stage = v[9], r.mb = v[10], r.peer = v[11];
  r.a = v[12], r.b = v[13];
  owner.state->ring.write(r);
  Py_RETURN_NONE;
}

py::tuple row(const Open& o) {
  return py::make_tuple(o.group->key, o.group_id, o.op, o.seq, o.p2p, o.send, o.peer, o.tag,
                        o.order, o.name_id, o.t0);
}

}  // namespace
}  // namespace pardbg

PYBIND11_MODULE(_hotpath, m) {
  using namespace pardbg;
  m.def("install", &install);
  m.def("uninstall", &uninstall);
  m.def("knows_torch", [] {  // torch's classes are ours too: the same pybind11 on both sides
    return py::detail::get_type_info(typeid(c10d::Work)) != nullptr &&
           py::detail::get_type_info(typeid(c10d::ProcessGroup)) != nullptr;
  });
  m.def("asks", [](py::object ask, py::object waited) {
    asks = new py::object(std::move(ask)), slow_waited = new py::object(std::move(waited));
  });
  m.def("pass_all", [](bool on) { passing = on; });
  m.def("forked", [] { current = nullptr, passing = thread_known = false; });
  m.def("wait_of", [](py::object original) {
    auto f = py::reinterpret_steal<py::object>(PyCFunction_New(&wait_def, original.ptr()));
    return py::reinterpret_steal<py::object>(PyInstanceMethod_New(f.ptr()));
  });
  m.def("specs", [] {
    py::list all;
    for (const Spec& s : kSpecs)
      all.append(py::make_tuple(s.name, s.op, s.group, s.root, s.tag, s.async_op, s.p2p, s.send,
                                s.future, s.functional, s.reduce >= 0, s.python));
    return all;
  });
  py::class_<Owner>(m, "Table", py::dynamic_attr())
      .def(py::init<py::buffer, uint64_t, uint64_t, uint64_t, py::object>())
      // From here on this Core's ops are ours, and the ring's indices. Python's writer is switched
      // over in one go: it may be writing in other threads.
      .def("adopt", [](Owner& o, py::object ring) {
        py::cast(&o).inc_ref();  // `record` may be called as long as the process lives
        auto take = py::cpp_function([s = o.state] { return s->ring.take(); });
        auto old = ring.attr("take");
        o.state->ring.start(old().cast<uint64_t>());
        ring.attr("take") = take;
        current = o.state, passing = false;
        const py::capsule self(&o);
        return py::reinterpret_steal<py::object>(PyCFunction_New(&record_def, self.ptr()));
      })
      .def("set", [](Owner& o, int level, uint32_t step, bool closed, bool slow, bool probes) {
        State& s = *o.state;
        s.step = step, s.closed = closed, s.slow = slow, s.probes = probes, s.level = level;
      })
      .def("set_step", [](Owner& o, uint32_t n) { o.state->step = n; })
      .def("set_closed", [](Owner& o, bool on) { o.state->closed = on; })
      .def("forget", [](Owner& o, uintptr_t group) {
        o.state->forget(reinterpret_cast<const void*>(group));
      })
      .def("cost", [](Owner& o) {
        return py::make_tuple(o.state->hook_ns.load(), o.state->hook_calls.load());
      })
      .def("errors", [](Owner& o) { return o.state->errors.load(); })
      .def("probe_ns", [](Owner& o) { return o.state->probe_ns.load(); })
      .def("sums", [](Owner& o) { return o.state->sums.take(); })
      .def("poll", [](Owner& o) {
        py::list ended;
        for (const auto& [r, t1] : poll(*o.state))
          ended.append(py::make_tuple(r.name_id, r.t0, r.step, r.seq, r.group_id, r.flags, r.stage,
                                      r.mb, r.peer, r.a, r.b, t1));
        return ended;
      })
      .def("num_polled", [](Owner& o) { return o.state->polled.size(); })
      // -- labels
      .def("label", [](Owner& o, uintptr_t data, bool send, char letter, int16_t stage, int16_t mb) {
        std::lock_guard<std::mutex> guard(o.state->lock);
        o.state->labels[{reinterpret_cast<const void*>(data), send}] = Label{letter, stage, mb};
        o.state->num_labels = o.state->labels.size();
      })
      .def("unlabel", [](Owner& o, uintptr_t data, bool send) -> py::object {
        std::lock_guard<std::mutex> guard(o.state->lock);
        const auto at = o.state->labels.find({reinterpret_cast<const void*>(data), send});
        if (at == o.state->labels.end()) return py::none();
        const Label found = at->second;
        o.state->labels.erase(at);
        o.state->num_labels = o.state->labels.size();
        return py::make_tuple(std::string(1, found.letter), found.stage, found.mb);
      })
      .def("num_labels", [](Owner& o) { return o.state->num_labels.load(); })
      .def("clear_labels", [](Owner& o) {
        std::lock_guard<std::mutex> guard(o.state->lock);
        o.state->labels.clear(), o.state->num_labels = 0;
      })
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
                        int64_t t0, int64_t order) {
        Table& t = o.state->table;
        Group* group = t.group(key);
        return t.issued(Open{group, group_id, op, seq, p2p, send, peer, tag, order, name_id, t0},
                        p2p ? t.edge(group, peer, tag, send) : nullptr);
      }, py::arg("group_key"), py::arg("group_id"), py::arg("op"), py::arg("seq"), py::arg("p2p"),
         py::arg("send"), py::arg("peer"), py::arg("tag"), py::arg("name_id"), py::arg("t0"),
         py::arg("order") = -1)
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
        o.state->table.look([&](auto&, auto&, auto& edges) {
          for (const Edge& e : edges)
            if (e.group->key == key && e.peer == peer && e.tag == tag && e.send == send)
              found = e.issued;
        });
        return found;
      })
      .def_property_readonly("num_ever", [](Owner& o) { return o.state->table.newest(); })
      .def_property_readonly("revision", [](Owner& o) {
        uint64_t n = 0;
        o.state->table.look([&](auto& open, auto&, auto&) {
          n = 2 * o.state->table.newest() - open.size();
        });
        return n;
      })
      .def("rows", [](Owner& o) {  // (open ops, [(group, issued)], [(group, peer, tag, send, n)])
        std::vector<Open> open;
        py::list ops, groups, edges;
        std::vector<std::pair<std::string, int64_t>> numbers;
        std::vector<Edge> ends;
        o.state->table.look([&](auto& o, auto& g, auto& e) {  // no Python on the lock
          for (const auto& item : o) open.push_back(item.second);
          for (const auto& item : g)
            if (item.second->issued >= 0) numbers.emplace_back(item.first, item.second->issued);
          ends.assign(e.begin(), e.end());
        });
        for (const Open& one : open) ops.append(row(one));
        for (const auto& [key, n] : numbers) groups.append(py::make_tuple(key, n));
        for (const Edge& e : ends)
          if (e.issued) edges.append(py::make_tuple(e.group->key, e.peer, e.tag, e.send, e.issued));
        return py::make_tuple(ops, groups, edges);
      });
}
