#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "actors/session/session.hpp"
#include "apps/gpt/options/loss_average.hpp"
#include "apps/gpt/stage/cut.hpp"
#include "apps/gpt/stage/stage_memory.hpp"

namespace troupe::apps::gpt {

/// A stage's parameters: those of its chunks one after another, in the order in which its session registers
/// them.
class StageParameters {
 public:
  StageParameters(const ModelConfig& config, const ParameterTable& table, const StageCut& cut);

  /// Places in the whole model's table, in the order of the session.
  const std::vector<std::size_t>& places() const { return places_; }
  /// For a place in the whole model's table; empty if another stage has it.
  std::optional<core::ParameterIndex> index(std::size_t place) const;
  /// The stage's specs among those of the whole model, with units renumbered; a parameter that is in no unit
  /// of the whole model, because both ends read it as a tied embedding, is in one here.
  std::vector<core::ParameterSpec> select(const std::vector<core::ParameterSpec>& whole) const;
  TableRange chunk(int chunk) const { return ranges_[static_cast<std::size_t>(chunk)]; }
  int chunks() const { return static_cast<int>(ranges_.size()); }
  /// The units of a chunk, as a half-open range.
  std::pair<int, int> units(int chunk) const;

 private:
  std::vector<TableRange> ranges_;
  std::vector<std::size_t> places_;
  std::vector<std::uint32_t> units_;  ///< by place
};

/// Brings the gradients of a stage to its session, lane by lane. If the session goes by passes, every chunk
/// adds to its gradients in its own passes. Otherwise lanes come one after another: a pipeline's microbatches
/// are those of the rank's lanes, lane by lane, and every chunk runs backward through them in that order. The
/// last chunk that a microbatch reaches, the first of forward, adds to the session's gradients. By then a
/// stage may have finished several lanes in its other chunks: their gradients wait in memory of the
/// trainer's. A rank that has all layers begins a lane with its first forward.
class StageLanes {
 public:
  /// Everything given must outlive it. `is_whole`: the rank has all layers.
  StageLanes(actors::Session& session, const StageParameters& parameters, const ParameterTable& table,
             const StageMemory& memory, bool is_whole);

  /// Allocates the memory in which gradients of this many lanes wait, if they do; otherwise it is allocated
  /// when needed.
  core::Result<void> reserve(int lanes);
  void begin_step(const StepAverage& average);
  /// SessionOptions::passes describes the step.
  bool by_passes() const { return session_.units() > 0 && !is_whole_; }
  bool is_whole() const { return is_whole_; }
  int microbatches() const { return static_cast<int>(lanes_.size()) * per_lane_; }
  /// The lane of a pipeline's microbatch, and its number within the lane.
  std::pair<core::Lane, int> place_of(int microbatch) const;
  /// It is the last of its lane.
  bool ends_lane(int microbatch) const { return microbatch % per_lane_ + 1 == per_lane_; }

  /// Before forward of a microbatch on a rank that has all layers; elsewhere it does nothing. Sets where the
  /// lane's gradients go.
  core::Result<void> begin_forward(int microbatch, std::span<float*> gradients);
  /// Before a chunk adds to gradients for a microbatch: sets where, by place in the whole table, for each
  /// own piece of sequences.
  core::Result<void> begin(int chunk, int microbatch, std::span<float*> gradients);
  /// The chunk's contribution to a parameter for the current microbatch is complete. The first failure is
  /// kept for end().
  void ready(std::size_t place);
  core::Result<void> end(int chunk, int microbatch);
  /// For the outcome of the step; on the last stage.
  void set_loss(int microbatch, std::size_t piece, double loss) { losses_[at(microbatch, piece)] = loss; }
  void set_targets(int microbatch, std::size_t piece, std::size_t targets) {
    targets_[at(microbatch, piece)] = targets;
  }

 private:
  /// Gradients of a chunk's parameters, one after another, and of each those of own pieces.
  using Waiting = gpu::Buffer;

  std::size_t at(int microbatch, std::size_t piece) const {
    return static_cast<std::size_t>(microbatch) * pieces_ + piece;
  }
  std::size_t waiting_bytes(int chunk) const;
  core::Result<void> begin_lane(int microbatch);
  core::Result<void> find_gradients(int chunk, std::span<float*> gradients);
  core::Result<void> add_waiting(int lane);
  core::Result<void> end_lane(int lane);

  actors::Session& session_;
  const StageParameters& parameters_;
  const ParameterTable& table_;
  const StageMemory& memory_;
  const bool is_whole_;
  std::vector<core::Lane> lanes_;
  int per_lane_;
  std::size_t pieces_;                              ///< of each sequence, on this rank
  std::vector<double> losses_;                      ///< per microbatch and piece; of other stages zeros
  std::vector<std::size_t> targets_;                ///< as above
  StepAverage average_;                             ///< of the step
  std::map<std::pair<int, int>, Waiting> waiting_;  ///< by lane, counted from the first, and chunk
  std::map<int, std::vector<Waiting>> unused_;      ///< by chunk
  int chunk_ = 0;                                   ///< the one that has begun
  core::Result<void> told_;
};

}  // namespace troupe::apps::gpt
