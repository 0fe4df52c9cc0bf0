#include "apps/troupe/plan/program_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "actors/world/storage/posix.hpp"
#include "apps/command_line/json_text.hpp"
#include "core/errors.hpp"
#include "core/number.hpp"
#include "core/program/job_programs.hpp"
#include "core/program/overlap.hpp"
#include "core/program/program_file.hpp"
#include "core/program/program_text.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;
using Json = nlohmann::ordered_json;

/// A check looks at every launch of a step.
constexpr std::int64_t kMostLaunches = 1'000'000;
constexpr std::uint64_t kMostFileBytes = std::uint64_t{256} << 20;

std::string print(const core::Program& program, bool as_json) {
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
  return as_json ? json_text(json, -1) : text;
}

std::vector<int> coordinates_of(int rank, const std::vector<int>& sizes) {
  std::vector<int> coordinates(sizes.size());
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    coordinates[axis] = rank % sizes[axis];
    rank /= sizes[axis];
  }
  return coordinates;
}

Result<void> write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return {};
  return core::fail(Errc::io, "--output: cannot write {}: {}", core::quoted_excerpt(path),
                    std::strerror(errno));
}

Result<std::string> read_text(const std::string& name) {
  const std::filesystem::path path(name);
  const auto folder = path.parent_path().string();
  auto storage = TRY(actors::PosixStorage::open(folder.empty() ? "." : folder));
  const auto file = path.filename().string();
  const auto size = TRY(storage->size(file));
  if (size > kMostFileBytes) {
    return core::fail(Errc::corrupt, "{} bytes are more than programs have", size);
  }
  const auto bytes = TRY(storage->read(file, 0, size));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<core::NamedProgramFile> read_programs(const std::string& name) {
  const auto shown = core::quoted_excerpt(name);
  const auto text = read_text(name);
  if (!text) return core::fail(text.error().code, "FILE {}: {}", shown, text.error().message);
  auto file = core::parse_program_file(*text);
  if (!file) return core::fail(Errc::corrupt, "FILE {}: {}", shown, file.error().message);
  return core::NamedProgramFile{name, *std::move(file)};
}

Result<std::string> check(const core::JobPrograms& job, bool as_json) {
  const auto checked = core::representatives(job);
  TRY(core::check_programs(checked));
  std::vector<std::vector<std::string>> operations;  // of each program that has other ones
  for (const auto& program : job.programs) {
    auto own = core::lines(program.operations);
    if (!own.empty() && std::find(operations.begin(), operations.end(), own) == operations.end()) {
      operations.push_back(std::move(own));
    }
  }
  if (as_json) {
    Json json{{"ranks", job.of_place.size()},
              {"programs", job.programs.size()},
              {"representatives", checked.ranks.size()}};
    if (!operations.empty()) json["operations"] = operations;
    return json_text(json, -1);
  }
  auto text = fmt::format("{} ranks run {} programs; {} ranks that stand for all of them pass each other\n",
                          job.of_place.size(), job.programs.size(), checked.ranks.size());
  for (const auto& own : operations) text += fmt::format("{}\n", fmt::join(own, "\n"));
  return text;
}

}  // namespace

Result<std::string> report_program(const ProgramReportArguments& arguments) {
  const auto inputs = TRY(program_inputs(arguments.program));
  const auto& sizes = inputs.domains[0].sizes;
  const int rank = arguments.rank.value_or(0);
  if (rank >= arguments.program.ranks) {
    return core::fail(Errc::invalid_argument, "--rank {}: there are {} ranks, counted from 0", rank,
                      arguments.program.ranks);
  }
  if (arguments.output.empty()) {
    return print(TRY(core::plan_program(inputs, coordinates_of(rank, sizes))), arguments.program.json);
  }
  core::ProgramFile file{.sizes = sizes, .parts = {}};
  if (arguments.rank) {
    auto program = TRY(core::plan_program(inputs, coordinates_of(rank, sizes)));
    file.parts.push_back({{{rank, rank}}, std::move(program)});
  } else {
    file = core::file_of(TRY(core::plan_all(inputs)));
  }
  TRY(write_text(arguments.output, core::to_text(file)));
  const auto ranks = arguments.rank ? 1 : arguments.program.ranks;
  if (arguments.program.json) {
    return json_text({{"file", arguments.output}, {"programs", file.parts.size()}, {"ranks", ranks}}, -1);
  }
  return fmt::format("{} programs of {} ranks are in {}\n", file.parts.size(), ranks, arguments.output);
}

Result<std::string> report_check(const ProgramArguments& arguments) {
  const std::int64_t of_unit = arguments.stages > 1 && arguments.schedule == "zero_bubble" ? 4 : 3;
  const std::int64_t launches = of_unit * arguments.units * arguments.rounds;
  if (launches > kMostLaunches) {
    return core::fail(
        Errc::invalid_argument,
        "{} units in {} rounds are up to {} launches of a rank, and a check takes {}; rounds are "
        "alike, so fewer of them check the same",
        arguments.units, arguments.rounds, launches, kMostLaunches);
  }
  return check(TRY(core::plan_all(TRY(program_inputs(arguments)))), arguments.json);
}

Result<std::string> report_check(const std::vector<std::string>& files, bool json) {
  std::vector<core::NamedProgramFile> read;
  for (const auto& name : files) read.push_back(TRY(read_programs(name)));
  return check(TRY(core::join_files(read)), json);
}

}  // namespace troupe::apps
