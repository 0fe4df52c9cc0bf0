#pragma once

#include <functional>
#include <string>

#include "actors/world/storage/posix.hpp"
#include "apps/command_line/app.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// What a command prints, and whether it found all well.
struct Outcome {
  std::string text;
  bool good = true;
};

/// Adds --follow-links; without it links below the paths of a command are refused.
void add_follow_links(CLI::App& command, actors::Links& links);

inline constexpr int kFoundFault = 1;  ///< damage, or a difference
inline constexpr int kTrouble = 2;

/// Runs a command of `troupe checkpoint`; its text goes to stdout, its error to stderr. Returns the exit
/// code; a checkpoint that turns out to be damaged is `on_damage`.
int print_outcome(const char* command, int on_damage, const std::function<core::Result<Outcome>()>& run);
int print_outcome(const char* command, const std::function<core::Result<Outcome>()>& run);

}  // namespace troupe::apps
