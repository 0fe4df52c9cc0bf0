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
/// slow. A rank that is held up by other work on its host, and would compute as fast as the others if it had
/// a processor, is not slow either: of it is said that. For the Coordinator.
class Stragglers {
 public:
  /// A rank holds up the others that takes longest, more than this many times their median, and by that makes
  /// the step longer by this part of it. It is slow if that is so without its waits for a processor too.
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
    std::chrono::nanoseconds run_delay{};
    std::chrono::nanoseconds step{};
    std::uint32_t lanes = 0;
    std::uint64_t steps = 0;
    bool is_new = false;
  };
  enum class Verdict { as_fast, slow, without_processor };
  struct Course {
    Verdict said = Verdict::as_fast;
    Verdict last = Verdict::as_fast;
    int rounds = 0;  ///< in a row that were judged like the last one
  };
  /// The lower one of the two in the middle, of the other ranks with the same part.
  struct Usual {
    std::chrono::nanoseconds lane{};
    std::chrono::nanoseconds computed{};  ///< without waits for a processor
  };

  std::vector<std::string> judge(const std::vector<core::Rank>& alike);
  Verdict verdict_of(const Told& own, const Usual& usual) const;
  std::string news_of(core::Rank rank, Verdict verdict, const Usual& usual);

  std::map<core::Rank, std::int32_t> stages_;
  std::map<core::Rank, Told> told_;
  std::map<core::Rank, Course> courses_;
};

}  // namespace troupe::actors
