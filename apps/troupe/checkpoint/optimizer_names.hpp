#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/troupe/checkpoint/source.hpp"
#include "core/result.hpp"
#include "core/values/key_path.hpp"

namespace troupe::apps {

// What an optimizer keeps of parameter "w" is "optimizer.state.exp_avg.w" here, and in what PyTorch's
// get_state_dict() gives "<optimizer>.state.w.exp_avg", with the steps it took as a scalar for each
// parameter,
// "<optimizer>.state.w.step", and "<model>.w" for the parameter itself.

/// Where a nested state of PyTorch has what. Prefixes end in a dot or are empty.
struct TorchLayout {
  std::string model = "model.";
  std::string optimizer = "optim.";
  std::vector<std::string> others;  ///< tensors that are of neither, and keep their names
};

/// As an imported checkpoint keeps it among its common values, and as one that has none is given it.
core::Value value_of(const TorchLayout& layout);
TorchLayout torch_layout_of(const core::Manifest& manifest);
inline constexpr const char* kTorchLayoutKey = "torch";

/// What from_torch_names() found.
struct TorchOptimizer {
  TorchLayout layout;
  std::optional<std::int64_t> steps;  ///< that the optimizer took; none: it does not count them
};

/// Gives the tensors Troupe's names, so that a session goes on with the moments. The scalars of steps go;
/// what Troupe's optimizers do not keep is left out by name. Errc::invalid_argument when there is no such
/// state, when it is of parameters by number (a plain Optimizer.state_dict()) or of parameters that are not
/// there, and when parameters took different numbers of steps.
core::Result<TorchOptimizer> from_torch_names(Source& source);

/// A tensor as PyTorch finds it again.
struct TorchName {
  std::string key;
  core::KeyPath path;
};

/// By the same rules. In the order of the manifest's tensors.
std::vector<TorchName> torch_names(const core::Manifest& manifest, const TorchLayout& layout);
/// Of the parameters with state, the names of their steps, each once.
std::vector<TorchName> torch_step_names(const core::Manifest& manifest, const TorchLayout& layout);

/// Values with the paths to them, as PyTorch takes a nested state apart: what is no map, and empty ones.
struct TorchValue {
  core::KeyPath path;
  core::Value value;
};
std::vector<TorchValue> flattened(const core::Value& value);

}  // namespace troupe::apps
