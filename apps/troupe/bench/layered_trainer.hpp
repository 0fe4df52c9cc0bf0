#pragma once

#include <cstdint>
#include <vector>

#include "actors/session/session.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Where layers compute.
enum class Computes {
  elsewhere,  ///< the processor is free meanwhile, as it is while an accelerator computes
  here,       ///< the trainer's thread is busy
};

/// Forward and backward of layers, one parameter each. Plays the rank's first lane only.
class LayeredTrainer {
 public:
  /// `milliseconds`: of one layer's forward; backward takes twice as long.
  LayeredTrainer(actors::Session& session, int layers, double milliseconds,
                 Computes computes = Computes::elsewhere)
      : session_(session), layers_(layers), milliseconds_(milliseconds), computes_(computes) {}

  core::Result<actors::StepOutcome> step();

 private:
  void compute(int parts) const;

  actors::Session& session_;
  int layers_;
  double milliseconds_;
  Computes computes_;
};

/// The median of the values, which may be in any order; 0 if there are none.
double median(std::vector<double> values);

/// A port of the loopback interface that was free a moment ago.
core::Result<std::uint16_t> free_port();

}  // namespace troupe::apps
