#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/ids.hpp"
#include "messages/step.hpp"

namespace troupe::actors {

/// Finds ranks that compute more slowly than others do with the same part of the model, by what ranks tell of
/// their own time: it has no waits for others in it, so those whom a slow rank holds up are not taken for
/// slow. For the Coordinator.
class Stragglers {
 public:
  /// A rank is slow that takes longest, more than this many times the median of the others, and by that makes
  /// the step longer by this part of it.
  static constexpr double kFactor = 4.0 / 3;
  static constexpr double kPart = 0.1;
  /// So many times in a row before anything is said: other load on a host comes and goes.
  static constexpr int kRounds = 6;

  /// Ranks with the same number keep the same part of the model.
  explicit Stragglers(std::map<core::Rank, std::int32_t> stages = {}) : stages_(std::move(stages)) {}

  /// What there is to say now: of a rank that has become slow, and of one that no longer is.
  std::vector<std::string> add(const messages::StepsTimed& timed);

 private:
  struct Told {
    std::chrono::nanoseconds lane{};
    std::chrono::nanoseconds step{};
    std::uint32_t lanes = 0;
    std::uint64_t steps = 0;
    bool is_new = false;
  };
  struct Course {
    bool is_slow = false;  ///< as was said
    int against = 0;       ///< rounds in a row that speak against that
  };

  std::vector<std::string> judge(const std::vector<core::Rank>& alike);
  std::string news_of(core::Rank rank, bool is_slow, std::chrono::nanoseconds usual);

  std::map<core::Rank, std::int32_t> stages_;
  std::map<core::Rank, Told> told_;
  std::map<core::Rank, Course> courses_;
};

}  // namespace troupe::actors
