#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/program/job_programs.hpp"
#include "core/program/program.hpp"
#include "core/result.hpp"

namespace troupe::core {

/// Ranks by their places in domain 0, the last axis fastest: from `first` to `last`, both included.
struct PlaceRange {
  int first = 0;
  int last = 0;

  friend bool operator==(const PlaceRange&, const PlaceRange&) = default;
};

/// Programs of some or all ranks of a job, as a file has them.
struct ProgramFile {
  struct Part {
    std::vector<PlaceRange> places;  ///< of the ranks that run it
    Program program;

    friend bool operator==(const Part&, const Part&) = default;
  };
  std::vector<int> sizes;  ///< of domain 0 of the whole job
  std::vector<Part> parts;

  friend bool operator==(const ProgramFile&, const ProgramFile&) = default;
};

/// A check looks at every launch of a step, so this is what a program of a file may have.
inline constexpr std::int64_t kMostFileLaunches = 1'000'000;

ProgramFile file_of(const JobPrograms& job);

/// JSON, with all that a program says.
std::string to_text(const ProgramFile& file);

/// Errc::corrupt names the field that is missing, unknown, of a wrong kind, or out of the bounds within which
/// a program can be gone through; whether it makes sense is for check_programs().
Result<ProgramFile> parse_program_file(std::string_view text);

struct NamedProgramFile {
  std::string name;
  ProgramFile file;
};

/// The job whose ranks' programs are in these files. Ranks with equal programs share one.
/// Errc::invalid_argument names the files from jobs of other sizes, and the ranks that have no program,
/// or two.
Result<JobPrograms> join_files(std::span<const NamedProgramFile> files);

}  // namespace troupe::core
