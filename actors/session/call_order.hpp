#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"

namespace troupe::actors {

/// Holds a trainer to the order of calls that Session describes. Every method answers a call that comes out
/// of turn with Errc::invalid_argument, which says what should have been called, and changes nothing then.
///
///     between steps -> begin_step -> (begin_lane -> begin_microbatch* -> end_lane)* -> finish_step
///     between steps -> begin_evaluation -> end_evaluation
class CallOrder {
 public:
  /// `lanes` are those that the rank plays, in order; by passes: not one after another.
  CallOrder(std::vector<core::Lane> lanes, int microbatches, std::uint32_t parameters,
            bool by_passes = false);

  core::Result<void> begin_step();
  core::Result<void> begin_evaluation();
  core::Result<void> end_evaluation();
  core::Result<void> begin_learning();
  core::Result<void> end_learning();
  bool is_learning() const { return place_ == Place::learning; }
  core::Result<void> begin_lane(core::Lane lane);
  /// That a pass may begin, which pass_begun() is told of.
  core::Result<void> may_begin_pass() const;
  void pass_begun() { place_ = Place::in_lane; }
  /// Microbatch 0 begins with its lane; saying so again is allowed.
  core::Result<void> begin_microbatch(int index);
  core::Result<void> end_lane();
  core::Result<void> finish_step();
  core::Result<void> leave();

  /// A call that is for between two steps: a save, a restore.
  core::Result<void> between_steps(std::string_view call) const;
  /// A call that the steps of the session build on: a stream to compute on.
  core::Result<void> before_first_step(std::string_view call) const;
  /// A call that is for lanes that are played one after another.
  core::Result<void> by_lanes(std::string_view call) const;
  /// A call that is for a lane, or for what the order of units is learned from: a gradient.
  core::Result<void> in_lane(std::string_view call) const;
  /// A call that is for these, and for an evaluation: parameters are read.
  core::Result<void> reads(std::string_view call) const;
  /// That there is such a parameter, and the session was not left.
  core::Result<void> has_parameter(core::ParameterIndex index) const;

  bool is_in_step() const { return place_ == Place::between_lanes || place_ == Place::in_lane; }
  bool is_last_microbatch() const { return microbatch_ + 1 == microbatches_; }

 private:
  enum class Place : std::uint8_t { between_steps, between_lanes, in_lane, evaluating, learning, left };

  /// Where the trainer is, and what may come next: for the end of an Error.
  std::string here() const;
  core::Result<void> expect(Place place, std::string_view call) const;

  std::vector<core::Lane> lanes_;
  int microbatches_;
  std::uint32_t parameters_;
  bool by_passes_;
  Place place_ = Place::between_steps;
  bool has_stepped_ = false;
  std::size_t played_ = 0;  ///< lanes of this step that have ended
  int microbatch_ = 0;
};

}  // namespace troupe::actors
