#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "posix/process_identity.hpp"

namespace troupe::apps {

/// What the system tells about a process, without a signal to it.
struct ProcessFacts {
  enum class State : std::uint8_t { runs, sleeps, stopped, stuck, gone };
  struct Thread {
    std::int64_t id = 0;
    std::string name;
    char state = '?';                ///< as in /proc/<pid>/stat: R, S, D, T, t, Z
    bool is_ending = false;          ///< the kernel clears it away
    std::string waits_in;            ///< the kernel's function that it sleeps in; empty: none, or not told
    std::vector<std::string> stack;  ///< the kernel's, the innermost first
  };

  State state = State::gone;
  std::vector<Thread> threads;
  std::string not_allowed;  ///< what could not be read, and why

  bool is_gone() const { return state == State::gone; }
};

/// A process that is not this one is gone. Without threads it takes microseconds.
ProcessFacts look_at_process(const posix::ProcessIdentity& process, bool with_threads);

/// "is stopped (SIGSTOP, or a debugger)"
std::string describe(ProcessFacts::State state);

nlohmann::ordered_json to_json(const ProcessFacts& facts);
/// None if it is not what to_json() made.
std::optional<ProcessFacts> facts_from_json(const nlohmann::ordered_json& json);

}  // namespace troupe::apps
