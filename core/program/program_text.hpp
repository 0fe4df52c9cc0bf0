#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/program/program.hpp"

namespace troupe::core {

/// A communicator: a process group on one stream. Groups of two streams are two communicators, so that
/// neither waits for the other's launches.
struct Communicator {
  GroupKind group = GroupKind::world;
  int stream = 0;

  friend auto operator<=>(const Communicator&, const Communicator&) = default;
};
std::string describe(const Communicator& communicator);
Communicator communicator_of(const ProgramEntry& entry);

/// In the order in which a step first launches on them.
std::vector<Communicator> communicators(const Program& program);

/// What all members of its group must see alike in an entry.
std::string common_text(const ProgramEntry& entry);

/// The whole program, one line an entry, with "x8 unit-1:" before entries that repeat; the trainer's own
/// operations come last.
std::vector<std::string> lines(const Program& program);
/// The same, each entry with what it waits for, reads, writes and records; first in the step's first round,
/// and behind "later:" in later ones, where that differs.
std::vector<std::string> lines_with_recipes(const Program& program);

/// What the members of a communicator must agree on: its entries in order, without what each rank decides for
/// itself (points and credits). Equal programs have equal lines, however they are folded.
std::vector<std::string> lines(const Program& program, const Communicator& communicator);
/// Equal on two members exactly when their lines are (hash64).
std::uint64_t hash(const Program& program, const Communicator& communicator);
/// All that ranks compare: each communicator and its lines, then lines_with_recipes(), with the trainer's
/// operations at the end.
std::vector<std::string> compared_lines(const Program& program);

}  // namespace troupe::core
