#include "actors/simulation/expert_invariants.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <ostream>
#include <string>

#include "actors/roles/expert_group.hpp"
#include "actors/shell/inline_role.hpp"
#include "tests/support/printing.hpp"

namespace troupe::actors {
namespace {

using core::Lane;
using core::Rank;
using core::Step;
using messages::RowsGo;

/// What is wrong with a role.
enum class Planted : std::uint8_t {
  nothing,
  loses_a_choice,         ///< neither a row nor dropped
  forgets_to_return,      ///< decides a step whose rows are out
  returns_a_third_time,   ///< rows come back that have come back
  moves_before_counts,    ///< rows go before the counts are known
  returns_what_stays,     ///< rows come back that did not go out
  biases_without_commit,  ///< a refused step moves them
  biases_twice,           ///< a committed step moves them again
  biases_never,           ///< a committed step does not
  biases_of_its_own,      ///< another rank has others
  deaf_to_failure,        ///< goes on after an abort
};

std::ostream& operator<<(std::ostream& out, Planted bug) {
  static constexpr const char* kNames[] = {
      "Nothing",           "LosesAChoice",     "ForgetsToReturn",     "ReturnsAThirdTime",
      "MovesBeforeCounts", "ReturnsWhatStays", "BiasesWithoutCommit", "BiasesTwice",
      "BiasesNever",       "BiasesOfItsOwn",   "DeafToFailure"};
  return out << kNames[static_cast<std::size_t>(bug)];
}

/// An ExpertGroup with a bug.
class BuggyGroup final : public Machine {
 public:
  BuggyGroup(ExpertGroupConfig config, Planted bug) : inner_(config), config_(std::move(config)), bug_(bug) {}

  void receive(const messages::Envelope& envelope, Outbox& outbox) override {
    if (bug_ == Planted::deaf_to_failure && std::holds_alternative<messages::StepFailed>(envelope.body))
      return;
    const auto* wanted = std::get_if<messages::RowsWanted>(&envelope.body);
    const bool asks_nobody = bug_ == Planted::returns_a_third_time || bug_ == Planted::moves_before_counts ||
                             bug_ == Planted::returns_what_stays;
    if (wanted != nullptr && asks_nobody) {
      outbox.perform(MoveRows{config_.layer, wanted->exchange, Step{0}, wanted->go});
      return;
    }
    Outbox proper;
    inner_.receive(envelope, proper);
    for (auto& effect : proper.effects()) {
      auto work = std::get<Perform>(effect).work;
      if (auto* experts = std::get_if<ExpertWork>(&work)) {
        if (auto* state = std::get_if<KeepExpertState>(experts)) alter(*state);
      }
      outbox.perform(work);
      if (bug_ == Planted::biases_twice && work_if<KeepExpertState>(work) != nullptr) outbox.perform(work);
    }
  }
  std::string_view state() const override { return inner_.state(); }
  std::string waiting_for() const override { return inner_.waiting_for(); }

 private:
  void alter(KeepExpertState& state) const {
    if (bug_ == Planted::biases_without_commit) state.moved = true;
    if (bug_ == Planted::biases_never) state.moved = false;
    if (bug_ == Planted::biases_of_its_own) state.bias.front() += static_cast<float>(config_.rank.value);
  }

  ExpertGroupMachine inner_;
  ExpertGroupConfig config_;
  Planted bug_;
};

/// Two ranks with two experts each, whose rows move in this process.
class ExpertBugs : public testing::TestWithParam<Planted>, private RoleWitness {
 protected:
  ExpertBugs() {
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      const ExpertGroupConfig config{.rank = {rank},
                                     .layer = 0,
                                     .spread = {4, 2},
                                     .members = {Rank{0}, Rank{1}},
                                     .place = static_cast<std::size_t>(rank),
                                     .most_rows = 100,
                                     .most_exchanges = 8,
                                     .bias_rate = 0.5};
      InlineRole::Ways ways;
      ways.post = [](messages::Envelope) {};
      ways.perform = [](const messages::Address&, const Work&) {};
      ways.now = [] { return std::chrono::nanoseconds{}; };
      ways.witness = this;
      roles_.push_back(std::make_unique<InlineRole>(
          messages::Address{{rank}, messages::Role::expert_group, 0}, core::Epoch{1},
          std::make_unique<BuggyGroup>(config, GetParam()), std::move(ways)));
    }
  }

  void tell(const messages::Message& message) {
    for (auto& role : roles_) role->hear(message);
  }
  /// A layer's forward and backward in both ranks, and the step's end.
  void play(Step step, bool commit) {
    const auto bug = GetParam();
    tell(messages::StepBegan{step, 0.1, 1});
    const auto exchange = static_cast<std::uint64_t>(step.value) + 1;
    const std::vector<std::int64_t> counts{1, 2, 3, 4};
    if (bug == Planted::moves_before_counts) move(exchange, RowsGo::out);
    tell(messages::RowsCounted{step, Lane{0}, exchange, counts, bug == Planted::loses_a_choice ? 11 : 10, 0});
    tell(messages::CountsKnown{exchange, {counts, counts}});
    if (bug != Planted::returns_what_stays) move(exchange, RowsGo::out);
    if (bug != Planted::forgets_to_return) {
      const int passes = bug == Planted::returns_a_third_time ? 3 : 2;
      for (int pass = 0; pass < passes; ++pass) {
        if (pass > 0) move(exchange, RowsGo::out);
        move(exchange, RowsGo::back);
      }
    }
    tell(messages::LoadSummed{step, {2, 4, 6, 8}, {0, 0, 0, 0}});
    messages::StepDecided decided{step};
    decided.commit = commit;
    tell(decided);
  }
  void move(std::uint64_t exchange, RowsGo go) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      // Experts 0 and 1 get 3 rows of each rank, 2 and 3 get 7.
      const std::vector<std::int64_t> to_experts{3, 7},
          here = rank == 0 ? std::vector<std::int64_t>{3, 3} : std::vector<std::int64_t>{7, 7};
      const bool is_out = go == RowsGo::out;
      auto& role = *roles_[static_cast<std::size_t>(rank)];
      role.hear(messages::RowsWanted{exchange, go, is_out ? to_experts : here, is_out ? here : to_experts});
      const auto others = static_cast<std::size_t>(1 - rank);
      const std::int64_t away = to_experts[others], near = here[others];
      role.hear(messages::RowsArrived{exchange, go, is_out ? away : near, is_out ? near : away});
    }
  }

  std::vector<std::string> violations_;
  ExpertInvariants invariants_{[this](std::string sentence) { violations_.push_back(std::move(sentence)); }};

 private:
  void heard(const messages::Envelope& envelope) override { invariants_.heard(envelope); }
  void asked(const messages::Address& who, const Work& work) override { invariants_.asked(who, work); }
  void is_in(const messages::Address&, std::string_view) override {}

  std::vector<std::unique_ptr<InlineRole>> roles_;
};

std::string invariant_of(Planted bug) {
  switch (bug) {
    case Planted::nothing:
      return "";
    case Planted::loses_a_choice:
    case Planted::forgets_to_return:
    case Planted::returns_a_third_time:
      return "EG-1";
    case Planted::moves_before_counts:
    case Planted::returns_what_stays:
      return "EG-2";
    case Planted::biases_without_commit:
    case Planted::biases_twice:
    case Planted::biases_never:
    case Planted::biases_of_its_own:
      return "EG-3";
    case Planted::deaf_to_failure:
      return "EG-4";
  }
  return "";
}

TEST_P(ExpertBugs, AreNamedByTheirInvariant) {
  play(Step{0}, true);
  play(Step{1}, false);
  play(Step{2}, true);
  tell(messages::StepBegan{Step{3}, 0.1, 1});
  const std::vector<std::int64_t> counts{1, 2, 3, 4};
  tell(messages::RowsCounted{Step{3}, Lane{0}, 4, counts, 10, 0});
  for (const Rank rank : {Rank{0}, Rank{1}}) invariants_.failed(rank);
  tell(messages::StepFailed{Step{3}, {true, core::Errc::peer_lost, "rank 2 is lost"}});
  tell(messages::CountsKnown{4, {counts, counts}});

  const auto expected = invariant_of(GetParam());
  EXPECT_EQ(violations_.empty(), expected.empty());
  for (const auto& violation : violations_) EXPECT_EQ(violation.substr(0, 4), expected) << violation;
}

INSTANTIATE_TEST_SUITE_P(All, ExpertBugs,
                         testing::Values(Planted::nothing, Planted::loses_a_choice,
                                         Planted::forgets_to_return, Planted::returns_a_third_time,
                                         Planted::moves_before_counts, Planted::returns_what_stays,
                                         Planted::biases_without_commit, Planted::biases_twice,
                                         Planted::biases_never, Planted::biases_of_its_own,
                                         Planted::deaf_to_failure),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace troupe::actors
