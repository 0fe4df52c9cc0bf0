#include "apps/gpt/rank/stage_lanes.hpp"

#include <algorithm>

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::Result;

StageParameters::StageParameters(const ModelConfig& config, const ParameterTable& table,
                                 const StageCut& cut) {
  for (const ModelPart part : cut.parts) {
    ranges_.push_back(parameters_of(config, table, part));
    for (std::size_t place = ranges_.back().begin; place < ranges_.back().end; ++place)
      places_.push_back(place);
  }
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto unit_of = [&](std::size_t at) { return table.specs[places_[at]].unit; };
    const bool begins = i > 0 && (!unit_of(i) || unit_of(i) != unit_of(i - 1));
    units_.push_back(i == 0 ? 0 : units_.back() + (begins ? 1 : 0));
  }
}

std::pair<int, int> StageParameters::units(int chunk) const {
  const auto unit_at = [&](std::size_t place) { return static_cast<int>(units_[index(place)->value]); };
  const auto [begin, end] = ranges_[static_cast<std::size_t>(chunk)];
  return {unit_at(begin), unit_at(end - 1) + 1};
}

std::optional<core::ParameterIndex> StageParameters::index(std::size_t place) const {
  const auto found = std::lower_bound(places_.begin(), places_.end(), place);
  if (found == places_.end() || *found != place) return {};
  return core::ParameterIndex{static_cast<std::uint32_t>(found - places_.begin())};
}

std::vector<core::ParameterSpec> StageParameters::select(
    const std::vector<core::ParameterSpec>& whole) const {
  std::vector<core::ParameterSpec> specs;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    specs.push_back(whole[places_[i]]);
    specs.back().unit = core::UnitIndex{units_[i]};
  }
  return specs;
}

StageLanes::StageLanes(actors::Session& session, const StageParameters& parameters,
                       const ParameterTable& table, const StageMemory& memory, bool is_whole)
    : session_(session),
      parameters_(parameters),
      table_(table),
      memory_(memory),
      is_whole_(is_whole),
      lanes_(session.lanes()),
      per_lane_(session.training().microbatches),
      pieces_(static_cast<std::size_t>(session.training().own_pieces())),
      losses_(at(microbatches(), 0), 0),
      targets_(losses_.size(), 0) {}

Result<void> StageLanes::reserve(int lanes) {
  if (by_passes()) return {};
  for (int chunk = 1; chunk < parameters_.chunks(); ++chunk) {
    for (int lane = 0; lane < lanes; ++lane)
      unused_[chunk].push_back(TRY(memory_.allocate(waiting_bytes(chunk))));
  }
  return {};
}

std::size_t StageLanes::waiting_bytes(int chunk) const {
  const auto [begin, end] = parameters_.chunk(chunk);
  std::size_t elements = 0;
  for (std::size_t place = begin; place < end; ++place) elements += table_.specs[place].elements();
  return pieces_ * elements * sizeof(float);
}

void StageLanes::begin_step(const StepAverage& average) {
  average_ = average;
  std::fill(losses_.begin(), losses_.end(), 0);
  std::fill(targets_.begin(), targets_.end(), 0);
}

std::pair<core::Lane, int> StageLanes::place_of(int microbatch) const {
  return {lanes_[static_cast<std::size_t>(microbatch / per_lane_)], microbatch % per_lane_};
}

Result<void> StageLanes::begin(int chunk, int microbatch, std::span<float*> gradients) {
  chunk_ = chunk;
  if (is_whole_) return session_.begin_backward();
  if (chunk == 0 || by_passes()) {
    if (!by_passes()) {
      TRY(begin_lane(microbatch));
      TRY(session_.begin_backward());
    }
    return find_gradients(chunk, gradients);
  }
  const auto [begin, end] = parameters_.chunk(chunk);
  auto& waiting = waiting_[{microbatch / per_lane_, chunk}];
  if (waiting.bytes() == 0) {
    auto& unused = unused_[chunk];
    if (unused.empty()) {
      waiting = TRY(memory_.allocate(waiting_bytes(chunk)));
    } else {
      waiting = std::move(unused.back());
      unused.pop_back();
    }
    memory_.zero(waiting.view());
  }
  float* next = waiting.view().as<float>().data();
  for (std::size_t place = begin; place < end; ++place) {
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      gradients[piece * table_.specs.size() + place] = next;
      next += table_.specs[place].elements();
    }
  }
  return {};
}

Result<void> StageLanes::begin_lane(int microbatch) {
  const auto [lane, index] = place_of(microbatch);
  if (index == 0) TRY(session_.begin_lane(lane));
  return session_.begin_microbatch(index);
}

Result<void> StageLanes::begin_forward(int microbatch, std::span<float*> gradients) {
  if (!is_whole_) return {};
  TRY(begin_lane(microbatch));
  return place_of(microbatch).second == 0 ? find_gradients(0, gradients) : Result<void>{};
}

Result<void> StageLanes::find_gradients(int chunk, std::span<float*> gradients) {
  const auto [begin, end] = parameters_.chunk(chunk);
  for (std::size_t place = begin; place < end; ++place) {
    const auto index = *parameters_.index(place);
    const auto sources = static_cast<std::size_t>(TRY(session_.sources(index)));
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      float*& gradient = gradients[piece * table_.specs.size() + place];
      gradient = nullptr;
      if (sources > pieces_) continue;  // of an expert, which has them by source
      gradient = TRY(session_.gradient_memory(index, static_cast<int>(piece))).as<float>().data();
    }
  }
  return {};
}

void StageLanes::ready(std::size_t place) {
  if (chunk_ != 0 && !by_passes()) return;
  if (auto told = session_.gradient_ready(*parameters_.index(place)); !told && told_) told_ = told;
}

Result<void> StageLanes::end(int chunk, int microbatch) {
  TRY(told_);
  if (chunk != 0 || !ends_lane(microbatch)) return {};
  const int lane = microbatch / per_lane_;
  TRY(add_waiting(lane));
  return end_lane(lane);
}

/// The session's gradients of a lane begin as zeros, so this changes no bit.
Result<void> StageLanes::add_waiting(int lane) {
  for (auto found = waiting_.lower_bound({lane, 0}); found != waiting_.end() && found->first.first == lane;
       found = waiting_.erase(found)) {
    const int chunk = found->first.second;
    const auto [begin, end] = parameters_.chunk(chunk);
    std::size_t from = 0;
    for (std::size_t place = begin; place < end; ++place) {
      const auto index = *parameters_.index(place);
      for (std::size_t piece = 0; piece < pieces_; ++piece) {
        const auto gradient = TRY(session_.gradient_memory(index, static_cast<int>(piece)));
        memory_.add(found->second.view().subview(from, gradient.bytes), gradient);
        from += gradient.bytes;
      }
      TRY(session_.gradient_ready(index));
    }
    unused_[chunk].push_back(std::move(found->second));
  }
  return {};
}

Result<void> StageLanes::end_lane(int lane) {
  std::vector<StepAverage::Piece> sums(pieces_);
  for (int i = lane * per_lane_; i < (lane + 1) * per_lane_; ++i) {
    for (std::size_t piece = 0; piece < pieces_; ++piece) {
      sums[piece].losses += losses_[at(i, piece)];
      sums[piece].targets += targets_[at(i, piece)];
    }
  }
  return average_.end_lane(session_, sums);
}

}  // namespace troupe::apps::gpt
