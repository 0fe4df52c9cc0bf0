#include "apps/troupe/checkpoint/outcome.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "apps/command_line/say.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

/// Memory and the standard library's files are all that may throw here.
core::Result<Outcome> caught(const std::function<core::Result<Outcome>()>& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    return core::fail(core::Errc::internal, "gave up: {}", error.what());
  }
}

}  // namespace

void add_follow_links(CLI::App& command, actors::Links& links) {
  command.add_flag_callback(
      "--follow-links", [&links] { links = actors::Links::follow; },
      "Follow symbolic links below the path, which are refused otherwise");
}

int print_outcome(const char* command, int on_damage, const std::function<core::Result<Outcome>()>& run) {
  const auto outcome = caught(run);
  if (outcome) {
    // Large texts are not copied once more.
    std::fwrite(outcome->text.data(), 1, outcome->text.size(), stdout);
    return outcome->good ? 0 : kFoundFault;
  }
  say_error(fmt::format("troupe checkpoint {}", command), outcome.error().message);
  return outcome.error().code == core::Errc::corrupt ? on_damage : kTrouble;
}

int print_outcome(const char* command, const std::function<core::Result<Outcome>()>& run) {
  return print_outcome(command, kFoundFault, run);
}

}  // namespace troupe::apps
