#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/files/source.hpp"
#include "core/result.hpp"
#include "core/values/key_path.hpp"

namespace troupe::apps {

// What an optimizer keeps of parameter "w" is "optimizer.state.exp_avg.w" here, and in what PyTorch's
// get_state_dict() gives "<optimizer>.state.w.exp_avg", with the steps it took as a scalar for each
// parameter, "<optimizer>.state.w.step", and "<model>.w" for the parameter itself.

/// The state of the optimizer begins with this by the names of Troupe, and often by those of PyTorch.
inline constexpr std::string_view kOptimizerPrefix = "optimizer.";
inline constexpr std::string_view kOwnState = "optimizer.state.";

/// That both sides keep under one name; PyTorch's has no main values, which Troupe reads again all the same.
bool is_shared_kind(std::string_view kind);

/// A name of state taken apart; refers to it.
struct StateName {
  std::string_view prefix, parameter, kind;
};
/// "optim.state.w.exp_avg"; nothing for a name that is not of this kind.
std::optional<StateName> torch_state(std::string_view key);
/// "optimizer.state.exp_avg.w".
std::optional<StateName> own_state(std::string_view key);
inline constexpr std::string_view kStepKind = "step";

/// A tensor as PyTorch finds it again.
struct TorchName {
  std::string key;
  core::KeyPath path;
};

/// Names below {"model": ..., "optim": ...}, in the order of the manifest's tensors.
std::vector<TorchName> torch_names(const core::Manifest& manifest);
/// The steps of a parameter.
struct TorchSteps {
  TorchName name;
  std::int64_t steps = 0;
};
/// Those of all parameters with state, each once; none if the common values do not say how many there were.
core::Result<std::vector<TorchSteps>> torch_steps(const core::Manifest& manifest);

}  // namespace troupe::apps
