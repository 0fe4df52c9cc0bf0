#include "apps/command_line/say.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

#include "actors/world/log.hpp"

namespace troupe::apps {

namespace {

void say(actors::LogLevel level, std::string_view text) {
  // run_program() has refused variables that are wrong.
  auto options = actors::log_options(actors::process_variables()).value_or(actors::LogOptions{});
  options.file.clear();
  if (!options.json) options.sentences = [](std::string_view line) { fmt::print(stderr, "{}\n", line); };
  const auto log = actors::Log::open(std::move(options)).value();
  log->say(actors::Subsystem::tools, level, text);
}

}  // namespace

void say_error(std::string_view command, std::string_view sentence) {
  say(actors::LogLevel::error, fmt::format("{}: {}", command, sentence));
}

void say_note(std::string_view sentence) {
  say(actors::LogLevel::info, sentence);
}

}  // namespace troupe::apps
