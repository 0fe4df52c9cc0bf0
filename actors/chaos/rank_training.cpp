// How a simulated rank gets its state, and how it trains.
#include <algorithm>
#include <utility>

#include "actors/chaos/rank.hpp"

namespace troupe::actors {

namespace {

// Places of a rank's program, at which it hears all others.
constexpr int kReports = 0;
constexpr int kParts = 1;
constexpr int kChoice = 2;
constexpr int kFirstStep = 4;
constexpr int kEnd = 1 << 30;

}  // namespace

bool ChaosRank::owns(std::size_t element, int rank, int world) const {
  return static_cast<int>(element) % world == rank;
}

std::vector<int> ChaosRank::own_lanes() const {
  int world = room_->size();
  if (world_.has(PlantedBug::old_deal) && world_before_ > 0) world = std::max(world_before_, rank_ + 1);
  std::vector<int> lanes;
  for (int lane = 0; lane < world_.setup.lanes; ++lane) {
    if (lane % world == rank_) lanes.push_back(lane);
  }
  return lanes;
}

void ChaosRank::say(ChaosWords words, Heard heard) {
  words.epoch = next_.epoch;
  heard_ = std::move(heard);
  room_->tell_others(rank_,
                     [from = rank_, place = place_, words](ChaosRank& to) { to.hear(from, place, words); });
  words_[place_][rank_] = std::move(words);
  later({}, [this] { hear_all(); });
}

void ChaosRank::hear(int from, int place, const ChaosWords& words) {
  if (state_ != State::forming && state_ != State::training) return;
  world_.monitor.heard(next_.epoch, words.epoch);
  words_[place][from] = words;
  hear_all();
}

void ChaosRank::hear_all() {
  if (!heard_ || static_cast<int>(words_[place_].size()) < room_->size()) return;
  std::vector<ChaosWords> all;
  for (auto& [rank, words] : words_[place_]) all.push_back(std::move(words));
  words_.erase(place_);
  std::exchange(heard_, nullptr)(std::move(all));
}

void ChaosRank::welcome() {
  if (state_ == State::forming && place_ < 0) recover();
}

void ChaosRank::recover() {
  place_ = kReports;
  if (rank_ == 0 && next_.epoch.value > 1) {
    const auto claimed = claim_directory(world_.disk, writer());
    if (!claimed && claimed.error().code == core::Errc::stale_epoch) return lose(claimed.error().message);
    if (claimed) world_.monitor.claimed(next_.epoch);
  }
  // Before the first epoch nobody has had a state to keep.
  if (next_.epoch.value <= 1) return restore();
  ChaosWords words;
  const auto everything = (std::uint64_t{1} << kChaosElements) - 1;
  words.report.wants = everything;
  if (origin_ != 0)
    words.report.has =
        core::Survivor{origin_, layout_, {over_}, may_finish_next_, knows_last_decision_, parts_};
  say(std::move(words), [this](const std::vector<ChaosWords>& reports) { choose(reports); });
}

/// Whether the holders have all parts between them.
bool ChaosRank::is_whole(const core::CommonStep& step, const std::vector<ChaosWords>& reports) const {
  std::uint64_t parts = 0;
  for (const auto holder : step.holders)
    parts |= reports[static_cast<std::size_t>(holder.value)].report.has->structure;
  return parts + 1 == std::uint64_t{1} << kChaosElements;
}

void ChaosRank::choose(const std::vector<ChaosWords>& words) {
  std::vector<core::SurvivorReport> reports;
  std::uint64_t newest_origin = 0;
  for (const auto& each : words) {
    reports.push_back(each.report);
    if (each.report.has) newest_origin = std::max(newest_origin, each.report.has->origin);
  }
  newest_ = -1;
  for (const auto& each : reports) {
    if (each.has && each.has->origin == newest_origin) newest_ = std::max(newest_, each.has->over.value);
  }
  auto steps = core::common_steps(reports);
  if (world_.has(PlantedBug::goes_back)) std::ranges::reverse(steps);
  for (const auto& step : steps) {
    if (!is_whole(step, words) && !world_.has(PlantedBug::missing_part)) continue;
    const core::Rank self{rank_};
    if (std::ranges::find(step.finishing, self) != step.finishing.end()) {
      numbers_ = pending_;
      over_ += 1;
      world_.monitor.finished_step(id_, next_.epoch, over_, numbers_);
      may_finish_next_ = false;
      knows_last_decision_ = true;
      if (world_.has(PlantedBug::double_update))
        world_.monitor.finished_step(id_, next_.epoch, over_, numbers_);
    }
    ChaosWords own;
    own.parts.resize(kChaosElements);
    const bool holds = std::ranges::find(step.holders, self) != step.holders.end();
    for (std::size_t i = 0; holds && i < kChaosElements; ++i) {
      if ((parts_ >> i & 1) != 0) own.parts[i] = numbers_[i];
    }
    place_ = kParts;
    return say(std::move(own),
               [this, step](const std::vector<ChaosWords>& parts) { take_over(step, parts); });
  }
  restore();
}

void ChaosRank::take_over(const core::CommonStep& step, const std::vector<ChaosWords>& words) {
  std::vector<int> holders(kChaosElements, -1);
  const bool keeps_own = world_.has(PlantedBug::empty_spare) && origin_ == 0;
  for (std::size_t i = 0; i < kChaosElements; ++i) {
    for (std::size_t rank = 0; rank < words.size() && holders[i] < 0; ++rank) {
      if (!words[rank].parts[i]) continue;
      holders[i] = static_cast<int>(rank);
      if (!keeps_own) numbers_[i] = *words[rank].parts[i];
    }
  }
  world_.monitor.put_together(holders, step.over.value);
  origin_ = step.origin;
  over_ = step.over.value;
  may_finish_next_ = knows_last_decision_ = false;
  go_on(true);
}

void ChaosRank::restore() {
  origin_ = 0;
  place_ = kChoice;
  later(rank_ == 0 ? disk_time() : std::chrono::nanoseconds(0), [this] {
    ChaosWords words;
    if (rank_ == 0) words.checkpoint = newest_good();
    say(std::move(words), [this](const std::vector<ChaosWords>& all) { load(all.front().checkpoint); });
  });
}

void ChaosRank::go_on(bool in_memory) {
  world_.say("slot {} is rank {} of epoch {} after {} steps, {}", slot(), rank_, next_.epoch.value, over_,
             in_memory   ? "from memory"
             : over_ > 0 ? "from a save"
                         : "from first values");
  world_.monitor.begins(id_, over_, numbers_, newest_, in_memory);
  const int world = room_->size();
  layout_ = static_cast<std::uint64_t>(world) * 2 + (world_.setup.sharded ? 1 : 0);
  parts_ = 0;
  for (std::size_t i = 0; i < kChaosElements; ++i) {
    const bool keeps = !world_.setup.sharded || owns(i, rank_, world);
    parts_ |= keeps ? std::uint64_t{1} << i : 0;
  }
  step();
}

void ChaosRank::step() {
  if (over_ >= world_.setup.steps) {
    place_ = kEnd;
    if (is_saving_) {
      after_save_ = [this] { step(); };
      return;
    }
    return say({}, [this](const std::vector<ChaosWords>&) {
      declare(Membership::State::left);
      has_finished_ = true;
      later(world_.up_to(std::chrono::milliseconds(5)), [this] { end({}); });
    });
  }
  if (!is_member_) {
    is_member_ = true;
    set_training(true);
    state_ = State::training;
    declare(Membership::State::training);
    look_soon();
  }
  if (origin_ == 0) origin_ = next_.epoch.value;
  place_ = kFirstStep + 2 * static_cast<int>(over_);
  const auto most = std::chrono::milliseconds(is_slow_ ? 800 : 40);
  later(std::chrono::milliseconds(20) + world_.up_to(most), [this] {
    ChaosWords words;
    words.lanes = own_lanes();
    for (const int lane : words.lanes) words.gradients.push_back(lane_gradient(numbers_, over_, lane));
    say(std::move(words), [this](const std::vector<ChaosWords>& all) { reduce(all); });
  });
}

void ChaosRank::reduce(const std::vector<ChaosWords>& words) {
  std::vector<std::pair<int, const ChaosState*>> lanes;
  for (const auto& each : words) {
    for (std::size_t i = 0; i < each.lanes.size(); ++i) lanes.emplace_back(each.lanes[i], &each.gradients[i]);
  }
  if (!world_.has(PlantedBug::order_of_ranks)) std::ranges::sort(lanes);
  std::vector<int> numbers;
  std::vector<ChaosState> gradients;
  for (const auto& [lane, gradient] : lanes) {
    numbers.push_back(lane);
    gradients.push_back(*gradient);
  }
  world_.monitor.played(over_, numbers);
  pending_ = state_after(numbers_, gradients);
  may_finish_next_ = true;
  knows_last_decision_ = over_ > 0 && knows_last_decision_;
  set_deciding(true);
  ++place_;
  ChaosWords verdict;
  verdict.wishes_for_others = start_.files->wait_for_more == next_.epoch;
  say(std::move(verdict), [this](const std::vector<ChaosWords>& all) { decide(all); });
}

void ChaosRank::decide(const std::vector<ChaosWords>& words) {
  for (const auto& each : words) wishes_ = wishes_ || each.wishes_for_others;
  numbers_ = pending_;
  over_ += 1;
  may_finish_next_ = false;
  knows_last_decision_ = true;
  world_.monitor.finished_step(id_, next_.epoch, over_, numbers_);
  set_deciding(false);
  if (rank_ == 0) {
    start_.files->committed = over_;
    if (start_.files->written) start_.files->written();
  }
  at_boundary();
}

/// Others join from the state in memory, once all saves have ended.
void ChaosRank::at_boundary() {
  const bool forgets = world_.has(PlantedBug::forgets_saves) && next_.epoch.value > 1;
  if (over_ % world_.setup.save_every == 0 && !forgets) save();
  if (!wishes_ || over_ >= world_.setup.steps) return step();
  const auto leave = [this] { lose("others join"); };
  if (!is_saving_) return leave();
  after_save_ = leave;
}

}  // namespace troupe::actors
