#include "apps/troupe/diagnose/process_facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <system_error>

#include "core/enum_names.hpp"
#include "posix/small_file.hpp"

namespace troupe::apps {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr std::size_t kMostThreads = 64;
constexpr std::array<std::string_view, 5> kStates{"runs", "sleeps", "stopped", "stuck", "gone"};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

/// PF_EXITING. Peers see the end of a process while the kernel still takes down its memory.
constexpr std::uint64_t kExiting = 4;

/// Field 9 of /proc/<pid>/stat, of which this is the end, from field 3 on.
std::uint64_t flags_in(const std::string& stat) {
  std::istringstream fields(stat);
  std::string skipped;
  for (int field = 3; field < 9; ++field) fields >> skipped;
  std::uint64_t flags = 0;
  return fields >> flags ? flags : 0;
}

std::optional<ProcessFacts::Thread> look_at_thread(const fs::path& folder) {
  ProcessFacts::Thread thread;
  const std::string id = folder.filename();
  std::from_chars(id.data(), id.data() + id.size(), thread.id);
  const std::string stat = posix::read_small_file(folder / "stat").value_or("");
  const std::size_t open = stat.find('(');
  const std::size_t close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= stat.size())
    return std::nullopt;
  thread.name = stat.substr(open + 1, close - open - 1);
  thread.state = stat[close + 2];
  thread.is_ending = (flags_in(stat.substr(close + 2)) & kExiting) != 0;
  return thread;
}

/// Where it is in the kernel.
void look_into(const fs::path& folder, ProcessFacts::Thread& thread, std::string& not_allowed) {
  const std::string waits_in = posix::read_small_file(folder / "wchan").value_or("");
  if (waits_in != "0") thread.waits_in = waits_in;
  const auto told = posix::read_small_file(folder / "stack");
  const std::string stack = told.value_or("");
  if (stack.empty() && thread.state != 'R' && not_allowed.empty()) {
    not_allowed = fmt::format("the kernel's stacks ({}): {}", (folder / "stack").string(),
                              told ? "they are empty" : std::strerror(errno));
  }
  for (const std::string& line : lines_of(stack)) {
    const std::size_t name = line.find("] ");
    thread.stack.push_back(name == std::string::npos ? line : line.substr(name + 2));
  }
}

ProcessFacts::State state_of(const std::vector<ProcessFacts::Thread>& threads) {
  if (std::ranges::all_of(threads, [](const auto& thread) { return thread.is_ending; }))
    return ProcessFacts::State::gone;
  const auto any = [&](std::string_view states) {
    return std::ranges::any_of(
        threads, [&](const auto& thread) { return states.find(thread.state) != std::string_view::npos; });
  };
  if (any("Tt")) return ProcessFacts::State::stopped;
  if (any("R")) return ProcessFacts::State::runs;
  if (any("D")) return ProcessFacts::State::stuck;
  return any("SI") ? ProcessFacts::State::sleeps : ProcessFacts::State::gone;
}

}  // namespace

ProcessFacts look_at_process(const posix::ProcessIdentity& process, bool with_threads) {
  ProcessFacts facts;
  const auto found = posix::identify(process.pid);
  if (!found || *found != process) return facts;
  if (!with_threads) {
    const auto first = look_at_thread(fmt::format("/proc/{}", process.pid));
    if (first) facts.state = state_of({*first});
    return facts;
  }
  std::error_code error;
  const fs::path tasks = fmt::format("/proc/{}/task", process.pid);
  for (fs::directory_iterator entry(tasks, error), end; !error && entry != end; entry.increment(error)) {
    if (facts.threads.size() == kMostThreads) break;
    auto thread = look_at_thread(entry->path());
    if (!thread) continue;
    look_into(entry->path(), *thread, facts.not_allowed);
    facts.threads.push_back(*std::move(thread));
  }
  facts.state = state_of(facts.threads);
  return facts;
}

std::string describe(ProcessFacts::State state) {
  static constexpr auto kNames = core::enum_names<ProcessFacts::State>(
      "computes", "sleeps: it waits for something", "is stopped (SIGSTOP, or a debugger)",
      "hangs in the kernel, which often means a disk or a device", "is gone");
  return std::string(kNames[state]);
}

Json to_json(const ProcessFacts& facts) {
  Json threads = Json::array();
  for (const auto& thread : facts.threads) {
    threads.push_back({{"id", thread.id},
                       {"name", thread.name},
                       {"state", std::string(1, thread.state)},
                       {"waits_in", thread.waits_in},
                       {"stack", thread.stack}});
  }
  return {{"state", kStates[static_cast<std::size_t>(facts.state)]},
          {"threads", std::move(threads)},
          {"not_allowed", facts.not_allowed}};
}

std::optional<ProcessFacts> facts_from_json(const Json& json) {
  if (!json.is_object()) return std::nullopt;
  const auto state = json.find("state");
  if (state == json.end() || !state->is_string()) return std::nullopt;
  const auto known = std::ranges::find(kStates, state->get<std::string>());
  if (known == kStates.end()) return std::nullopt;
  ProcessFacts facts;
  facts.state = static_cast<ProcessFacts::State>(known - kStates.begin());
  return facts;
}

}  // namespace troupe::apps
