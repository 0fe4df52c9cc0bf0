#include <string_view>
#include <vector>

#include "core/disregard.hpp"
#include "core/errors.hpp"
#include "core/program/check_programs.hpp"
#include "core/program/launch_cursor.hpp"
#include "core/program/program_file.hpp"
#include "tests/fuzz/targets.hpp"

namespace troupe::fuzz {

namespace {

/// A longer step is checked alike, but not a hundred thousand times.
bool is_short(const core::Program& program) {
  std::size_t operations = 0;
  for (const auto& run : program.operations) {
    operations += run.operations.size() * static_cast<std::size_t>(run.times);
  }
  if (operations * static_cast<std::size_t>(program.rounds) > 200) return false;
  int launches = 0;
  for (core::LaunchCursor cursor(program); !cursor.at_end(); cursor.advance()) {
    if (++launches > 200) return false;
  }
  return program.clock().points() < 2000;
}

}  // namespace

int fuzz_programs(const std::uint8_t* data, std::size_t size) {
  const auto file = core::parse_program_file({reinterpret_cast<const char*>(data), size});
  if (!file) return 0;
  const auto again = core::parse_program_file(core::to_text(*file));
  CHECK(again.has_value() && *again == *file, "programs are the same after writing and reading");
  const auto job = core::join_files(std::vector{core::NamedProgramFile{"fuzz", *file}});
  if (!job || job->of_place.size() > 64) return 0;
  for (const auto& program : job->programs) {
    if (!is_short(program)) return 0;
  }
  core::disregard(core::check_programs(core::representatives(*job)), "either is right, a crash is not");
  return 0;
}

}  // namespace troupe::fuzz
