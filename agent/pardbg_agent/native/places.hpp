// Call sites of asynchronous ops, whose waits are elsewhere in the program. The thread's own frames are
// read without the GIL: the thread is in C++, so nothing changes them. Layouts are those of CPython
// 3.11 and 3.12; other versions have no call sites.

#pragma once

#include <Python.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "table.hpp"

namespace pardbg {

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
struct Frame {
  void *function, *globals, *builtins, *locals;
  PyCodeObject* code;
  void* object;
  const Frame* previous;
  const char* at;  // the instruction
};
#define PARDBG_FRAMES 1
#elif PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
struct Frame {
  PyCodeObject* code;
  const Frame* previous;
  void *function, *globals, *builtins, *locals, *object;
  const char* at;
};
#define PARDBG_FRAMES 1
#endif

// pardbg_agent.tables.code_files: path parts of programs and of libraries, set by Python.
struct CodeFiles {
  std::vector<std::string> programs, libraries;
};
inline CodeFiles& code_files() {
  static auto* const all = new CodeFiles;
  return *all;
}
inline bool is_program(std::string_view file) {
  const auto has = [&](const std::string& part) { return file.find(part) != file.npos; };
  const auto& [programs, libraries] = code_files();
  if (file.starts_with('<')) return false;
  return std::any_of(programs.begin(), programs.end(), has) ||
         std::none_of(libraries.begin(), libraries.end(), has);
}

#ifdef PARDBG_FRAMES
// Whether code is the program's own. Known code is kept alive, so that its address identifies it.
class Codes {
 public:
  struct Recent {  // per thread: its look-ups need no lock
    const PyCodeObject* code = nullptr;
    bool users = false;
  };
  static Recent* recent() {
    static thread_local Recent all[64];
    return all;
  }

  bool is_users(PyCodeObject* code, Recent* recent) {
    Recent& own = recent[(reinterpret_cast<uintptr_t>(code) >> 5) & 63];
    if (own.code != code) own = Recent{code, look_up(code)};
    return own.users;
  }

 private:
  static constexpr size_t kMost = 4096;  // later ones count as library code

  bool look_up(PyCodeObject* code) {
    {
      std::lock_guard<std::mutex> guard(lock_);
      const auto at = known_.find(code);
      if (at != known_.end()) return at->second;
      if (known_.size() >= kMost || _Py_IsFinalizing()) return false;
    }
    const PyGILState_STATE gil = PyGILState_Ensure();
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    if (file == nullptr) PyErr_Clear();
    const bool users = file != nullptr && is_program(file);
    Py_INCREF(code);
    PyGILState_Release(gil);
    std::lock_guard<std::mutex> guard(lock_);
    known_.emplace(code, users);
    return users;
  }


  std::mutex lock_;
  std::unordered_map<const PyCodeObject*, bool> known_;
};

#endif

// Call sites of the last asynchronous ops, by time of issue.
class Places {
 public:
  struct Place {
    int64_t t0 = 0;
    PyCodeObject* code = nullptr;
    int offset = 0;
  };

  void note(int64_t t0) {
#ifdef PARDBG_FRAMES
    const PyThreadState* thread = PyGILState_GetThisThreadState();
    if (thread == nullptr || thread->cframe == nullptr) return;
    auto* frame = reinterpret_cast<const Frame*>(thread->cframe->current_frame);
    Codes::Recent* const recent = Codes::recent();
    for (int i = 0; frame != nullptr && i < kDeepest; i++, frame = frame->previous) {
      if (!codes_.is_users(frame->code, recent)) continue;
      const auto offset = frame->at - reinterpret_cast<const char*>(frame->code->co_code_adaptive);
      std::lock_guard<std::mutex> guard(lock_);
      last_[next_++ % kLast] = Place{t0, frame->code, static_cast<int>(offset)};
      return;
    }
#endif
  }

  Place find(int64_t t0) {
    std::lock_guard<std::mutex> guard(lock_);
    for (const Place& place : last_)
      if (place.t0 == t0 && place.code != nullptr) return place;
    return Place{};
  }

 private:
  static constexpr size_t kLast = 256;
  static constexpr int kDeepest = 48;  // frames
#ifdef PARDBG_FRAMES
  Codes codes_;
#endif
  std::mutex lock_;
  size_t next_ = 0;
  Place last_[kLast];
};

}  // namespace pardbg
