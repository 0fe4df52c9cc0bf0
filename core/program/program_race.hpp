#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/program/check_programs.hpp"
#include "core/program/program_text.hpp"

namespace troupe::core {

/// A launch of a program with its points numbered.
struct CheckedLaunch {
  ProgramEntry entry;
  std::int64_t ready = 0;
  std::int64_t needed = 0;
  std::int64_t returned = -1;  ///< point at whose end the credit it took comes back
  std::int64_t borrowed = -1;  ///< point at whose begin the trainer took the credit it gives back
  int input = -1;              ///< the launch that writes what it reads
  std::size_t on_stream = 0;   ///< its place among the launches of its stream
  std::size_t on_group = 0;    ///< its place among the launches of its communicator
};

/// An operation of the trainer's own, in the order in which its step comes to them.
struct CheckedOperation {
  TrainerOperation operation;
  int round = 0;
  std::int64_t at = 0;       ///< the point that it is in
  std::size_t on_group = 0;  ///< its place among those of its group
};

/// All launches of one step of a program, and all operations of its trainer's own.
struct CheckedProgram {
  explicit CheckedProgram(const Program& program);

  const Program* program;
  List<int, CheckedOperation> operations;
  std::map<GroupKind, std::vector<int>> operations_on;  ///< those of each group
  List<int, CheckedLaunch> launches;
  List<int, std::vector<int>> streams;              ///< the launches of each
  std::map<Communicator, std::vector<int>> groups;  ///< the launches of each
  // By point: what must be over before it begins, what takes a credit there and what gives one back after it.
  List<std::int64_t, std::vector<int>> needed_at;
  List<std::int64_t, std::vector<int>> borrowed_at;
  List<std::int64_t, std::vector<int>> returned_at;

 private:
  void add_operations(const StepClock& clock);
};

/// One step of a job, run without time. What check_programs() looks at.
class ProgramRace {
 public:
  struct RankState {
    const CheckedProgram* program = nullptr;
    std::int64_t at = 0;           ///< the point at which the trainer is; all before it have ended
    bool has_begun = false;        ///< it is in that point, not before it
    int met = 0;                   ///< operations of its own that have ended
    bool has_come = false;         ///< to the next of them
    List<int, std::size_t> heads;  ///< of each stream: launches that have ended
    List<int, bool> launched;
    List<int, bool> over;
    List<Pool, int> free;  ///< slots of each pool
  };

  explicit ProgramRace(const CheckedJob& job);

  /// Waits until nothing can go on. An Error breaks PR-2 or PR-3.
  Result<void> run();
  bool is_over() const;

  const CheckedJob& job() const { return *job_; }
  const RankState& rank(int index) const { return ranks_[index]; }
  /// The group of a kind that a rank is in.
  const CheckedGroup* group_of(int rank, GroupKind kind) const;
  /// What a trainer that wants to begin a point waits for: a launch.
  std::optional<int> trainer_waits_for(int rank) const;
  /// What a trainer that is in a point waits for: an operation of its own, to which it has come.
  const CheckedOperation& operation_of(int rank) const;
  /// Whether a launch at the head of its stream waits for a credit.
  bool lacks_credit(int rank, int launch) const;

 private:
  /// A collective that some members have come to.
  struct Meeting {
    int first_rank = 0;
    std::size_t arrived = 0;
  };

  Result<bool> advance_trainer(int rank);
  /// Whether the trainer may begin its point, which it then has: with its credits taken.
  bool begin_point(RankState& rank);
  /// The trainer comes to its operations of the point, one after another, as far as they have ended.
  Result<bool> meet_operations(int rank);
  Result<void> end_point(int rank);
  Result<bool> advance_stream(int rank, int stream);
  Result<void> arrive(int rank, int launch);
  Result<void> arrive_at_operation(int rank);
  template <class Name>
  Result<const CheckedGroup*> group_for(int rank, GroupKind kind, const Counts& counts,
                                        const Name& name) const;
  Result<void> compare(int rank, int launch, int other) const;
  Result<void> compare_operations(int rank, int other) const;
  void finish(const CheckedGroup& group, const Communicator& communicator, std::size_t place);

  const CheckedJob* job_;
  std::map<const Program*, CheckedProgram> programs_;
  List<int, RankState> ranks_;
  List<int, std::map<GroupKind, int>> groups_;                              // of each rank, by kind
  std::map<std::pair<int, int>, std::map<std::size_t, Meeting>> meetings_;  // by group and stream, by place
  std::map<int, std::map<std::size_t, Meeting>> operations_;                // by group, by place
};

/// "rank 3's entry 7, all_gather of parameters 3.0 on dp_cp on stream 1"
std::string name_launch(const ProgramRace& race, int rank, int launch);

/// "rank 3's operation 7, all_to_all on ep in 'forward of unit 2' of round 0"
std::string name_operation(const ProgramRace& race, int rank, int operation);

/// Why a race that is not over cannot go on.
Error explain_standstill(const ProgramRace& race);

}  // namespace troupe::core
