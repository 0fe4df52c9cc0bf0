#include "apps/gpt/model/optimizer.hpp"

#include "core/errors.hpp"

namespace troupe::apps::gpt {

using core::OptimizerKind;
using core::OptimizerOptions;

core::Result<void> choose_optimizer(core::TrainingOptions& training, std::string_view name,
                                    const core::OptimizerOptions& given) {
  OptimizerOptions adam = given;
  adam.kind = OptimizerKind::adamw;
  training.groups.clear();
  if (name == "adamw") {
    training.optimizer = adam;
    return {};
  }
  if (name == "lion") {
    training.optimizer = {.kind = OptimizerKind::lion, .weight_decay = adam.weight_decay};
    return {};
  }
  if (name == "muon") {
    const OptimizerOptions muon{.kind = OptimizerKind::muon,
                                .weight_decay = adam.weight_decay,
                                .scale = core::MuonScale::match_rms_adamw};
    training.groups.resize(2);
    training.groups[kMatrices].optimizer = muon;
    training.groups[kOthers].optimizer = adam;
    return {};
  }
  return core::fail(core::Errc::invalid_argument, "'{}' does not step this model; choose adamw, lion or muon",
                    name);
}

}  // namespace troupe::apps::gpt
