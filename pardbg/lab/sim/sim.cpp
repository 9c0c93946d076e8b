// The Python module of the simulated accelerator.
#include <torch/csrc/utils/pybind.h>

#include "backend.hpp"

namespace sim {

static py::object or_none(int64_t at, int64_t minus = 0) {
  return at == UNKNOWN ? py::object(py::none()) : py::object(py::int_(at - minus));
}
static py::list take_log() {
  Log entries;
  {
    std::lock_guard guard(lock());
    entries = std::exchange(immortal<Log>(), {});
    logged = true;
  }
  py::list out;
  for (auto& e : entries) {
    const auto end = look(e.end);
    out.append(py::make_tuple(e.name, e.stream, e.host, or_none(look(e.arrival)), or_none(end, e.cost), or_none(end)));
  }
  return out;
}
static std::map<std::string, int64_t> counted() {
  auto& c = counts();
  return {{"live_events", c.live_events}, {"syncs", c.syncs}, {"data_waits", c.data_waits},
          {"contexts", c.contexts}, {"recorded", c.recorded}};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using Free = py::call_guard<py::gil_scoped_release>;
#define FIELD(name) .def_readwrite(#name, &Settings::name)
  py::class_<Settings>(m, "Settings")
      FIELD(op_ns) FIELD(launch_ns) FIELD(speed) FIELD(comm_default_ns) FIELD(comm_byte_ns) FIELD(queue)
      FIELD(memory) FIELD(foreign) FIELD(record_ns) FIELD(query_ns) FIELD(drift) FIELD(capturing) FIELD(blind);
  py::class_<Moment, Time>(m, "Moment");
  m.def("settings", &settings, py::return_value_policy::reference);
  m.def("counts", &counted);
  m.def("take_log", &take_log);
  m.def("last_event", [] { return recorded_here; });
  m.def("time_of", [](const Time& t) { return or_none(look(t)); });
  m.def("now", &now);
  m.def("spend", [](int64_t ns, const std::string& name) { launch(current_stream(), name, ns); }, Free());
  m.def("attach_out_of_memory_observer", [](py::function told) {
    observer() = [told = new py::function(std::move(told))](int64_t d, int64_t asked, int64_t limit, int64_t free) {
      py::gil_scoped_acquire gil;
      (*told)(d, asked, limit, free);
    };
  });
  m.def("own_stream", [] { return own_stream(-1).id(); });
  m.def("hold", [] { return hold(current_stream()).end; });
  m.def("release", &settle);
  m.def("new_backend", [](BackendPtr data, BackendPtr clock, int rank, int size) {
    return BackendPtr(c10::make_intrusive<SimBackend>(std::move(data), std::move(clock), rank, size));
  });
}

}  // namespace sim
