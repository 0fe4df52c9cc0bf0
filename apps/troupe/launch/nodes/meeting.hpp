#pragma once

#include <chrono>
#include <string>

#include "actors/world/environment.hpp"
#include "apps/troupe/launch/nodes/link.hpp"
#include "apps/troupe/launch/options.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// How many nodes a job has, which of them this is, and where their launchers meet.
struct Meeting {
  int nodes = 1;
  int fewest_nodes = 1;  ///< with which it begins and goes on
  int node = 0;          ///< -1: any; whose address the meeting place is becomes node 0
  std::string host;      ///< of the meeting place, without brackets; empty with one node
  int port = 0;
  std::string flag;    ///< what says so
  std::string engine;  ///< the one that started the launchers, if its variables were read
  std::chrono::nanoseconds patience = std::chrono::minutes(10);
  /// For nodes that may come, once enough are there.
  std::chrono::nanoseconds last_call = std::chrono::seconds(30);
  Heartbeat heartbeat;
};

/// Reads the flags, and what they do not say from the variables of the engine that started the launchers.
/// Errc::invalid_argument and Errc::unavailable name the flag or the variable.
core::Result<Meeting> find_meeting(const LaunchOptions& options, const actors::Variables& variables);

}  // namespace troupe::apps
