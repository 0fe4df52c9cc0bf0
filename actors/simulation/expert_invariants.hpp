#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/roles/work.hpp"
#include "core/ids.hpp"
#include "messages/envelope.hpp"

namespace troupe::actors {

/// Checks what ExpertGroups hear and ask for against EG-1 to EG-4 of docs/architecture.md, after every one of
/// their events.
class ExpertInvariants {
 public:
  /// `violate` takes a whole sentence that begins with the invariant's name.
  explicit ExpertInvariants(std::function<void(std::string)> violate) : violate_(std::move(violate)) {}

  void heard(const messages::Envelope& envelope);
  void asked(const messages::Address& who, const Work& work);
  /// The rank's trainer is told that the step failed.
  void failed(core::Rank rank) { failed_.insert(rank); }

 private:
  using Group = std::pair<core::Rank, std::uint32_t>;  ///< rank and layer
  struct Exchange {
    core::Step step{};
    bool trains = false;
    bool is_known = false;  ///< the counts of all members are
    int out = 0, back = 0;  ///< how often its rows went, and came back
  };
  struct Layer {
    std::map<std::uint64_t, Exchange> exchanges;
    core::Step begun{-1}, moved{-1};
    messages::StepDecided decided{core::Step{-1}};
    bool has_bias = false;
  };

  void on(const Group& group, const messages::StepBegan& begun);
  void on(const Group& group, const messages::RowsCounted& counted);
  void on(const Group& group, const messages::StepDecided& decided);
  void on(const Group& group, const MoveRows& move);
  void on(const Group& group, const KeepExpertState& state);
  void hand_out(const Group& group, const char* what);
  static std::string name_of(const Group& group);

  std::function<void(std::string)> violate_;
  std::map<Group, Layer> layers_;
  std::set<core::Rank> failed_;
  /// By layer and step: what the first rank that kept biases has kept.
  std::map<std::pair<std::uint32_t, core::Step>, std::pair<core::Rank, std::vector<float>>> biases_;
};

}  // namespace troupe::actors
