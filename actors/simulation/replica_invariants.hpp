#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/roles/work.hpp"
#include "core/ids.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// Checks the local saves of one epoch against LT-1 to LT-4 of docs/architecture.md, by the messages that are
/// posted and the work that is requested.
class ReplicaInvariants {
 public:
  /// `violate` takes a whole sentence that begins with the invariant's name.
  explicit ReplicaInvariants(std::function<void(std::string)> violate) : violate_(std::move(violate)) {}

  void on_message(const messages::Envelope& envelope);
  void on_work(const messages::Address& who, const Work& work);

  /// How local saves ended, as the first trainer was told, in the order in which it was told.
  const std::vector<messages::LocalSaveOver>& saves() const { return saves_; }

 private:
  struct Save {
    std::set<core::Rank> ready;
    std::set<core::Rank> held;
    std::optional<messages::LocalSaveOver> over;
    std::set<core::Rank> told;  ///< trainers that were told
  };
  /// What a rank has in progress.
  struct Rounds {
    std::map<std::uint32_t, std::uint32_t> busy;  ///< by buffer: the round that uses it
    std::uint64_t exchange = 0;
    std::uint32_t shared = 0;
  };

  void on(const messages::LocalSaveOver& over, const messages::Address& from, const messages::Address& to);
  void on(core::Rank rank, const ReadRound& work);
  void on(core::Rank rank, const ShareRound& work);
  void on(core::Rank rank, const TidyCopies& work);
  void done(core::Rank rank, std::uint32_t credit) { rounds_[rank].busy.erase(credit); }

  std::function<void(std::string)> violate_;
  std::map<std::uint64_t, Save> all_;
  std::map<core::Rank, Rounds> rounds_;
  std::vector<messages::LocalSaveOver> saves_;
};

}  // namespace troupe::actors
