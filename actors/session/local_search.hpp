#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "actors/planes/replica/copies.hpp"
#include "core/checkpoint/cliques.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// What a rank holds, in its storage and in those beside it, and what it wants.
struct Holding {
  FoundCopies found;
  std::uint64_t wants = 0;  ///< layout_hash() of what the rank keeps
};

/// In the form kept in the job's store.
core::Result<std::string> text_of(const Holding& holding);
core::Result<Holding> parse_holding(std::string_view text);

/// What rank 0 proposes to restore: a checkpoint, a local save, or nothing.
struct RestoreChoice {
  std::string checkpoint;  ///< its name; empty: none
  std::optional<core::CopyName> local;
  std::vector<core::CopyTransfer> transfers;  ///< they bring the local save's lost copies, for all cliques
  std::vector<core::CopyGiver> givers;        ///< of the local save, if its copies do not fit the ranks
  std::vector<std::uint64_t> wants;           ///< where there are givers: layout_hash() for each rank
  std::vector<std::string> notes;             ///< newer local saves that cannot be used, and why

  bool is_nothing() const { return checkpoint.empty() && !local; }
  friend bool operator==(const RestoreChoice&, const RestoreChoice&) = default;
};

core::Result<std::string> text_of(const RestoreChoice& choice);
core::Result<RestoreChoice> parse_choice(std::string_view text);

/// Finds the local save to restore, in rank 0. A save that could not be loaded is proposed again if there are
/// now other copies of it than before.
class LocalSearch {
 public:
  explicit LocalSearch(std::vector<core::Clique> cliques) : cliques_(std::move(cliques)) {}

  /// What every rank holds now, in the order of ranks.
  void hear(std::vector<Holding> all);
  std::optional<core::CopyName> best() const { return best_; }
  /// The proposal of best().
  core::Result<RestoreChoice> propose() const;
  /// best() was proposed and could not be loaded; hear() must come next.
  void failed() { failed_ = best_; }
  /// What was proposed was loaded; hear() may come next.
  void loaded() { failed_.reset(); }
  /// A save of which all copies seem good could not be loaded.
  bool has_given_up() const { return !given_up_.empty(); }
  /// Notes since the last call.
  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 private:
  void note(std::string text);

  std::vector<core::Clique> cliques_;
  core::Holdings holdings_;
  std::vector<core::CopyGiver> givers_;  ///< of best_
  std::vector<std::uint64_t> wants_;
  std::set<core::CopyName> given_up_;
  std::optional<core::CopyName> best_;
  std::optional<core::CopyName> failed_;
  std::vector<std::string> notes_;
  std::set<std::string> noted_;
};

}  // namespace troupe::actors
