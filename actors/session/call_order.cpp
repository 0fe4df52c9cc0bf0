#include "actors/session/call_order.hpp"

#include <utility>

#include "core/errors.hpp"

namespace troupe::actors {

using core::Errc;
using core::fail;
using core::Result;

CallOrder::CallOrder(std::vector<core::Lane> lanes, int microbatches, std::uint32_t parameters,
                     bool by_passes)
    : lanes_(std::move(lanes)), microbatches_(microbatches), parameters_(parameters), by_passes_(by_passes) {}

std::string CallOrder::here() const {
  switch (place_) {
    case Place::between_steps:
      return "no step has begun; call begin_step() first";
    case Place::between_lanes:
      if (played_ == lanes_.size()) return "all lanes of the step have ended; call finish_step()";
      if (by_passes_) return "the step has begun and no pass has; call begin_pass()";
      return fmt::format("the step has begun and no lane has; call begin_lane({})", lanes_[played_].value);
    case Place::in_lane:
      if (by_passes_)
        return "a pass has begun; call begin_pass(), or end_lane() after the last one of a lane";
      return fmt::format("lane {} has begun; call end_lane() first", lanes_[played_].value);
    case Place::evaluating:
      return "an evaluation has begun; call end_evaluation() first";
    case Place::learning:
      return "the order of units is being learned, from one forward and one backward; call end_learning() "
             "after them";
    case Place::left:
      return "the session was left; make another one";
  }
  return {};
}

Result<void> CallOrder::expect(Place place, std::string_view call) const {
  if (place_ == place) return {};
  return fail(Errc::invalid_argument, "{} was called out of turn: {}", call, here());
}

Result<void> CallOrder::between_steps(std::string_view call) const {
  if (place_ == Place::between_lanes && played_ < lanes_.size()) {
    return fail(Errc::invalid_argument,
                "{} was called out of turn: it is for between two steps; play the step's lanes and call "
                "finish_step() first",
                call);
  }
  return expect(Place::between_steps, call);
}

Result<void> CallOrder::before_first_step(std::string_view call) const {
  if (place_ == Place::left) return expect(Place::between_steps, call);
  if (!has_stepped_) return {};
  return fail(
      Errc::invalid_argument,
      "{} was called after the first step of the session had begun; call it before that, after join()", call);
}

Result<void> CallOrder::by_lanes(std::string_view call) const {
  if (!by_passes_) return {};
  return fail(Errc::invalid_argument,
              "{} was called, but SessionOptions::passes says what a step does; call begin_pass() instead",
              call);
}

Result<void> CallOrder::may_begin_pass() const {
  if (!by_passes_) {
    return fail(
        Errc::invalid_argument,
        "begin_pass() was called, but there is no list of passes: give SessionOptions::passes, with a "
        "strategy that shards parameters or gradients, or call begin_lane()");
  }
  if (place_ == Place::in_lane) return {};
  if (place_ == Place::between_lanes && played_ < lanes_.size()) return {};
  return fail(Errc::invalid_argument, "begin_pass() was called out of turn: {}", here());
}

Result<void> CallOrder::in_lane(std::string_view call) const {
  if (place_ == Place::learning) return {};
  return expect(Place::in_lane, call);
}

Result<void> CallOrder::reads(std::string_view call) const {
  if (place_ == Place::evaluating) return {};
  return in_lane(call);
}

Result<void> CallOrder::has_parameter(core::ParameterIndex index) const {
  if (place_ == Place::left) return fail(Errc::invalid_argument, "a parameter was asked for, but {}", here());
  if (index.value < parameters_) return {};
  return fail(Errc::invalid_argument, "there is no parameter {}: the session has {}, numbered from 0",
              index.value, parameters_);
}

Result<void> CallOrder::begin_step() {
  TRY(between_steps("begin_step()"));
  place_ = Place::between_lanes;
  has_stepped_ = true;
  played_ = 0;
  return {};
}

Result<void> CallOrder::begin_evaluation() {
  TRY(between_steps("begin_evaluation()"));
  place_ = Place::evaluating;
  return {};
}

Result<void> CallOrder::end_evaluation() {
  if (place_ != Place::evaluating) {
    return fail(Errc::invalid_argument, "end_evaluation() was called, but no evaluation has begun");
  }
  place_ = Place::between_steps;
  return {};
}

Result<void> CallOrder::begin_learning() {
  TRY(by_lanes("begin_learning()"));
  TRY(between_steps("begin_learning()"));
  place_ = Place::learning;
  microbatch_ = 0;
  return {};
}

Result<void> CallOrder::end_learning() {
  TRY(expect(Place::learning, "end_learning()"));
  place_ = Place::between_steps;
  return {};
}

Result<void> CallOrder::begin_lane(core::Lane lane) {
  TRY(by_lanes("begin_lane()"));
  TRY(expect(Place::between_lanes, "begin_lane()"));
  if (played_ == lanes_.size() || lanes_[played_] != lane) {
    return fail(Errc::invalid_argument, "begin_lane({}) was called out of turn: {}", lane.value, here());
  }
  place_ = Place::in_lane;
  microbatch_ = 0;
  return {};
}

Result<void> CallOrder::begin_microbatch(int index) {
  TRY(in_lane("begin_microbatch()"));
  const bool again = index == 0 && microbatch_ == 0;
  if (!again && (index != microbatch_ + 1 || index >= microbatches_)) {
    return fail(
        Errc::invalid_argument,
        "begin_microbatch({}) was called out of turn: a lane has the microbatches 0 to {}, and {} has "
        "begun; {}",
        index, microbatches_ - 1, microbatch_,
        is_last_microbatch() ? std::string("call end_lane()")
                             : fmt::format("call begin_microbatch({})", microbatch_ + 1));
  }
  microbatch_ = index;
  return {};
}

Result<void> CallOrder::end_lane() {
  TRY(expect(Place::in_lane, "end_lane()"));
  if (!is_last_microbatch()) {
    return fail(Errc::invalid_argument,
                "end_lane() was called after microbatch {} of {}; call begin_microbatch({}) first",
                microbatch_, microbatches_, microbatch_ + 1);
  }
  place_ = Place::between_lanes;
  ++played_;
  return {};
}

Result<void> CallOrder::finish_step() {
  TRY(expect(Place::between_lanes, "finish_step()"));
  if (played_ < lanes_.size()) {
    return fail(Errc::invalid_argument, "finish_step() was called out of turn: {} of {} lanes have ended; {}",
                played_, lanes_.size(), here());
  }
  place_ = Place::between_steps;
  return {};
}

Result<void> CallOrder::leave() {
  TRY(between_steps("leave()"));
  place_ = Place::left;
  return {};
}

}  // namespace troupe::actors
