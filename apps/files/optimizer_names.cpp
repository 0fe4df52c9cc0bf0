#include "apps/files/optimizer_names.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps {

namespace {

constexpr std::string_view kState = "state.";
constexpr std::array<std::string_view, 4> kSharedKinds{"exp_avg", "exp_avg_sq", "momentum_buffer",
                                                       "fp32_param"};
/// That PyTorch keeps, and Troupe's optimizers do not.
constexpr std::array<std::string_view, 6> kOthers{"max_exp_avg_sq", "exp_inf",  "sum",
                                                  "square_avg",     "grad_avg", "prev"};

template <class List>
bool holds(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

TorchName torch_name(std::string_view parameter, std::string_view kind) {
  TorchName name{"optim.state." + std::string(parameter) + "." + std::string(kind), {}};
  for (const auto part : {std::string_view("optim"), std::string_view("state"), parameter, kind})
    name.path.emplace_back(std::string(part));
  return name;
}

}  // namespace

bool is_shared_kind(std::string_view kind) {
  return holds(kSharedKinds, kind);
}

std::optional<StateName> torch_state(std::string_view key) {
  const auto last = key.rfind('.');
  if (last == std::string_view::npos) return std::nullopt;
  const auto kind = key.substr(last + 1);
  if (!holds(kSharedKinds, kind) && !holds(kOthers, kind) && kind != kStepKind) return std::nullopt;
  const bool is_first = key.starts_with(kState);
  const auto dotted = key.find(".state.");
  if (!is_first && dotted == std::string_view::npos) return std::nullopt;
  const auto begin = is_first ? kState.size() : dotted + 1 + kState.size();
  if (begin >= last) return std::nullopt;
  return StateName{key.substr(0, begin - kState.size()), key.substr(begin, last - begin), kind};
}

std::optional<StateName> own_state(std::string_view key) {
  if (!key.starts_with(kOwnState)) return std::nullopt;
  const auto rest = key.substr(kOwnState.size());
  const auto dot = rest.find('.');
  if (dot == std::string_view::npos || !holds(kSharedKinds, rest.substr(0, dot))) return std::nullopt;
  return StateName{key.substr(0, kOptimizerPrefix.size()), rest.substr(dot + 1), rest.substr(0, dot)};
}

std::vector<TorchName> torch_names(const core::Manifest& manifest) {
  std::vector<TorchName> names;
  for (const auto& tensor : manifest.tensors) {
    if (const auto state = own_state(tensor.key)) {
      names.push_back(torch_name(state->parameter, state->kind));
    } else {
      names.push_back({"model." + tensor.key, {core::Key("model"), core::Key(tensor.key)}});
    }
  }
  return names;
}

core::Result<std::vector<TorchSteps>> torch_steps(const core::Manifest& manifest) {
  std::vector<TorchSteps> all;
  const auto* common = manifest.common.as_map();
  const auto* said = common != nullptr ? common->find("optimizer_steps") : nullptr;
  if (said == nullptr || !said->as_int()) return all;
  const auto steps = *said->as_int();
  const auto missed = TRY(core::steps_missed_in(common->find(core::kStepsMissedKey), {steps}));
  std::set<std::string> parameters;
  for (const auto& tensor : manifest.tensors) {
    if (const auto state = own_state(tensor.key)) parameters.emplace(state->parameter);
  }
  for (const auto& parameter : parameters) {
    const auto found = missed.find(parameter);
    all.push_back({torch_name(parameter, kStepKind), found == missed.end() ? steps : steps - found->second});
  }
  return all;
}

}  // namespace troupe::apps
