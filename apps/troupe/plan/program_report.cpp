#include "apps/troupe/plan/program_report.hpp"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/program/job_programs.hpp"
#include "core/program/overlap.hpp"
#include "core/program/program_text.hpp"

namespace troupe::apps {

namespace {

using Json = nlohmann::ordered_json;

/// A check looks at every launch of a step.
constexpr std::int64_t kMostLaunches = 1'000'000;

}  // namespace

core::Result<std::string> report_program(const ProgramArguments& arguments) {
  const auto inputs = TRY(program_inputs(arguments));
  const std::vector<int> first(inputs.domains[0].sizes.size(), 0);
  const auto program = TRY(core::plan_program(inputs, first));
  const auto overlap = core::overlap_of(program);
  Json json{{"entries", core::lines(program)}, {"communicators", Json::array()}};
  std::string text;
  for (const auto& line : core::lines(program)) text += line + "\n";
  text += "\n";
  for (const auto& communicator : core::communicators(program)) {
    const auto hash = fmt::format("{:016x}", core::hash(program, communicator));
    json["communicators"].push_back({{"name", core::describe(communicator)}, {"hash", hash}});
    text += fmt::format("{} {}\n", core::describe(communicator), hash);
  }
  json["gathers"] = overlap.gathers;
  json["reductions"] = overlap.reductions;
  json["hidden_gathers"] = overlap.hidden_gathers;
  json["hidden_reductions"] = overlap.hidden_reductions;
  text += fmt::format("{} gathers, {} of them under compute; {} reductions, {} of them under compute\n",
                      overlap.gathers, overlap.hidden_gathers, overlap.reductions, overlap.hidden_reductions);
  return arguments.json ? json.dump() + "\n" : text;
}

core::Result<std::string> report_check(const ProgramArguments& arguments) {
  const std::int64_t launches = std::int64_t{3} * arguments.units * arguments.rounds;
  if (launches > kMostLaunches) {
    return core::fail(
        core::Errc::invalid_argument,
        "{} units in {} rounds are up to {} launches of a rank, and a check takes {}; rounds are "
        "alike, so fewer of them check the same",
        arguments.units, arguments.rounds, launches, kMostLaunches);
  }
  const auto job = TRY(core::plan_all(TRY(program_inputs(arguments))));
  const auto checked = core::representatives(job);
  TRY(core::check_programs(checked));
  if (arguments.json) {
    return Json{{"ranks", job.of_place.size()},
                {"programs", job.programs.size()},
                {"representatives", checked.ranks.size()}}
               .dump() +
           "\n";
  }
  return fmt::format("{} ranks run {} programs; {} ranks that stand for all of them pass each other\n",
                     job.of_place.size(), job.programs.size(), checked.ranks.size());
}

}  // namespace troupe::apps
