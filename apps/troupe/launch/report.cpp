#include "apps/troupe/launch/report.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

namespace troupe::apps {

using actors::Ending;
using actors::ExitStatus;
using Json = nlohmann::json;

namespace {

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

bool rose(const std::optional<std::uint64_t>& before, const std::optional<std::uint64_t>& after) {
  return before && after && *after > *before;
}

std::string meaning_of_kill(const OomKills& before, const OomKills& after) {
  if (rose(before.in_cgroup, after.in_cgroup)) {
    return fmt::format(
        "the out-of-memory killer: oom_kill of this cgroup rose from {} to {}; use fewer ranks or less "
        "memory "
        "a rank, or raise the limit",
        *before.in_cgroup, *after.in_cgroup);
  }
  if (rose(before.on_machine, after.on_machine)) {
    return fmt::format(
        "the out-of-memory killer: oom_kill of this machine rose from {} to {} (see dmesg); use fewer ranks "
        "or "
        "less memory per rank",
        *before.on_machine, *after.on_machine);
  }
  return "somebody sent it (kill -9, or a scheduler); no out-of-memory kill was counted meanwhile";
}

std::string meaning_of_signal(int signal, const OomKills& before, const OomKills& after) {
  switch (signal) {
    case SIGKILL:
      return meaning_of_kill(before, after);
    case SIGSEGV:
      return "a crash: it used memory that is not its own; run it under a debugger, or built with asan";
    case SIGBUS:
      return "memory behind a mapping is missing: often /dev/shm or a disk is full (df -h /dev/shm)";
    case SIGABRT:
      return "it ended itself: a failed CHECK or assertion, or an exception nobody caught; see its last "
             "lines";
    case SIGILL:
      return "an instruction this processor does not have: it was built for another one";
    case SIGFPE:
      return "an integer division by zero, or the like";
    case SIGTERM:
    case SIGINT:
    case SIGHUP:
      return "somebody asked it to end";
    default:
      return {};
  }
}

std::string meaning_of_code(int code) {
  switch (code) {
    case 2:
      return "by convention: it does not like its arguments";
    case actors::kExitTemporaryFailure:
      return "it asks to be queued again";
    case actors::kExitFenced:
      return "it ended because another rank did; see that one";
    case actors::kExitNoCheckpoint:
      return "it found no checkpoint that it can use";
    case 126:
    case 127:
      return "a shell could not start the program in it";
    default:
      return {};
  }
}

std::string how_it_ended(const RankReport& rank) {
  return rank.ending.kind == Ending::Kind::lost ? std::string(name_of(rank.ending.kind))
                                                : to_string(rank.ending.status);
}

std::string one_line(const GenerationReport& report, const RankReport& rank) {
  const bool says_all = rank.ending.kind == Ending::Kind::completed || rank.ending.kind == Ending::Kind::lost;
  const std::string_view note = says_all ? "" : name_of(rank.ending.kind);
  const std::string end =
      rank.ending.kind == Ending::Kind::abandoned ? std::string("does not end") : how_it_ended(rank);
  const std::string host = rank.host.empty() ? "" : fmt::format("on {:<10} ", rank.host);
  return fmt::format("  rank {:<3} {}pid {:<8} {:<24} {:>+9.3f} s  {}", rank.ending.rank, host, rank.pid, end,
                     seconds(rank.ending.at - report.ranks[*report.cause].ending.at), note);
}

Json rank_to_json(const RankReport& rank, std::chrono::nanoseconds started) {
  return {{"rank", rank.ending.rank},
          {"host", rank.host},
          {"pid", rank.pid},
          {"kind", std::string(name_of(rank.ending.kind))},
          {"exit_code", rank.ending.status.code},
          {"signal", rank.ending.status.signal},
          {"status", how_it_ended(rank)},
          {"seconds", seconds(rank.ending.at - started)},
          {"error", rank.error_message},
          {"last_error_lines", rank.last_error_lines}};
}

}  // namespace

std::string likely_meaning(ExitStatus status, const OomKills& before, const OomKills& after) {
  if (status.signal != 0) return meaning_of_signal(status.signal, before, after);
  if (status.code > 128 && status.code < 128 + NSIG) {
    return fmt::format("by a shell's convention {}: {}", actors::signal_name(status.code - 128),
                       meaning_of_signal(status.code - 128, before, after));
  }
  return meaning_of_code(status.code);
}

std::vector<std::string> describe(const GenerationReport& report) {
  std::vector<std::string> lines;
  if (!report.cause) return lines;
  const RankReport& first = report.ranks[*report.cause];
  const bool is_of_it = first.ending.generation == report.generation;
  lines.push_back(
      fmt::format("first failure: {}{}: {} {}in generation {}", name_of_rank(first.ending.rank, first.host),
                  first.pid == 0 ? "" : fmt::format(" (pid {})", first.pid), how_it_ended(first),
                  is_of_it ? fmt::format("after {:.3f} s ", seconds(first.ending.at - report.started)) : "",
                  first.ending.generation));
  const bool is_silent = first.ending.is_silent || first.ending.kind == Ending::Kind::stopped ||
                         first.ending.kind == Ending::Kind::abandoned;
  const std::string meaning =
      is_silent ? "the others lost it, and it ended only when it was told to: it was stopped (SIGSTOP, a "
                  "debugger), or hung"
                : first.meaning;
  if (!meaning.empty()) lines.push_back("  likely: " + meaning);
  if (!first.error_message.empty()) lines.push_back("  error: " + first.error_message);
  if (!first.last_error_lines.empty()) lines.emplace_back("  its last lines on stderr:");
  for (const std::string& line : first.last_error_lines) lines.push_back("  | " + line);
  if (report.ranks.size() > 1) lines.emplace_back("the other ranks, in the order they ended:");
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    if (i != *report.cause) lines.push_back(one_line(report, report.ranks[i]));
  }
  return lines;
}

std::string to_json(const Job& job, const JobReport& report) {
  Json ranks = Json::array();
  for (const RankReport& rank : report.last.ranks) ranks.push_back(rank_to_json(rank, report.last.started));
  Json json = {{"job", job.id},
               {"run_id", job.run_id},
               {"program", job.arguments},
               {"world_size", job.place.world},
               {"nodes", job.place.nodes},
               {"exit_code", report.exit_code},
               {"verdict", report.verdict},
               {"restarts", report.restarts},
               {"generation", report.last.generation},
               {"first_failure", nullptr},
               {"ranks", std::move(ranks)}};
  if (report.last.cause) {
    const RankReport& first = report.last.ranks[*report.last.cause];
    json["first_failure"] = rank_to_json(first, report.last.started);
    json["first_failure"]["likely"] = first.meaning;
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string name_of_rank(int rank, const std::string& host) {
  return host.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} on {}", rank, host);
}

std::string read_error_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  const Json json = Json::parse(file, nullptr, false);
  if (!json.is_object() || !json.contains("message")) return {};
  const Json& message = json["message"];
  if (message.is_string()) return message.get<std::string>();
  if (message.is_object() && message.contains("message") && message["message"].is_string()) {
    return message["message"].get<std::string>();
  }
  return {};
}

void write_error_file(const std::filesystem::path& path, const RankReport& rank) {
  const Json json = {
      {"message",
       {{"message", to_string(rank.ending.status) + ", as the launcher saw it"},
        {"extraInfo", {{"py_callstack", ""}, {"timestamp", std::to_string(std::time(nullptr))}}},
        {"errorCode", rank.ending.status.code}}},
      {"last_error_lines", rank.last_error_lines}};
  std::ofstream(path) << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

}  // namespace troupe::apps
