#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/program/check_programs.hpp"
#include "core/program/lane_deal.hpp"
#include "core/program/plan_program.hpp"

namespace troupe::core {

/// The programs of all ranks that share the inputs. Ranks whose lanes have the same place in the tree share
/// one program, so 100,000 ranks need only a few.
struct JobPrograms {
  std::vector<int> sizes;         ///< of domain 0
  std::vector<Program> programs;  ///< each with the coordinates of the first rank that runs it
  std::vector<int> of_place;      ///< by place in domain 0, last axis fastest: index in `programs`
};

Result<JobPrograms> plan_all(const ProgramInputs& inputs);

/// A block's number of lanes, and in `ordered` numerics its place in the tree, which determine its roots.
struct BlockShape {
  int count = 0;
  int offset = 0;
  bool is_last = false;

  friend auto operator<=>(const BlockShape&, const BlockShape&) = default;
};

/// An entry as it is launched.
struct LaunchedEntry : ProgramEntry {
  std::uint64_t alike = 0;  ///< the hash of common_text()
};
using LaunchedEntries = std::shared_ptr<const std::vector<LaunchedEntry>>;  // shared by ranks
/// The entries of a program's launches, in their order.
LaunchedEntries entries_of(const Program& program);

using Lines = std::vector<std::string>;

/// Keeps what ranks plan and say for others that would plan and say the same, where a process has many. For
/// one thread.
class KnownPrograms {
 public:
  /// Like plan_program().
  Result<Program> plan(const ProgramInputs& inputs, const std::vector<int>& coordinates);
  /// Those of all programs that are the same but for the coordinates are the same.
  LaunchedEntries entries(const Program& program);
  /// Like compared_lines(); valid until the next call.
  const Lines& lines(const Program& program);
  /// The same lines, in memory of whoever had them first.
  std::shared_ptr<const Lines> share(Lines lines);

 private:
  /// More than a job has parts of its model.
  static constexpr std::size_t kMostInputs = 64;
  struct Known {
    ProgramInputs inputs;
    LaneDeal deal;
    std::map<std::vector<BlockShape>, Program> programs;
  };
  struct Written {
    Program program;  ///< without coordinates
    LaunchedEntries entries;
    Lines lines;  ///< empty until they are wanted
  };
  Written& written(Program program);

  std::deque<Known> known_;
  std::deque<Written> written_;
  std::deque<std::shared_ptr<const Lines>> shared_;
};

/// A job with just enough ranks to represent all: along each axis, one coordinate for each kind of slice
/// through the mesh; where neighbours post operations together, one group of each kind. check_programs()
/// finds in it what it would find in the whole job. Groups that reduce gradients of experts are taken to be
/// as large as the dense ones that contain them.
CheckedJob representatives(const JobPrograms& job);

}  // namespace troupe::core
