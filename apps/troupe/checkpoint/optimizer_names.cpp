#include "apps/troupe/checkpoint/optimizer_names.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr std::string_view kState = "state.";
constexpr std::string_view kStep = "step";
constexpr std::string_view kOwnState = "optimizer.state.";
/// That both sides keep under one name; PyTorch's has no main values, which Troupe reads again all the same.
constexpr std::array<std::string_view, 4> kStateKinds{"exp_avg", "exp_avg_sq", "momentum_buffer",
                                                      "fp32_param"};
/// That PyTorch keeps, and Troupe's optimizers do not.
constexpr std::array<std::string_view, 6> kOthers{"max_exp_avg_sq", "exp_inf",  "sum",
                                                  "square_avg",     "grad_avg", "prev"};

template <class List>
bool holds(const List& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// "optim.state.w.exp_avg" taken apart.
struct StateName {
  std::string_view prefix, parameter, kind;
};

std::optional<StateName> torch_state(std::string_view key) {
  const auto last = key.rfind('.');
  if (last == std::string_view::npos) return std::nullopt;
  const auto kind = key.substr(last + 1);
  if (!holds(kStateKinds, kind) && !holds(kOthers, kind) && kind != kStep) return std::nullopt;
  const bool is_first = key.starts_with(kState);
  const auto dotted = key.find(".state.");
  if (!is_first && dotted == std::string_view::npos) return std::nullopt;
  const auto begin = is_first ? kState.size() : dotted + 1 + kState.size();
  if (begin >= last) return std::nullopt;
  return StateName{key.substr(0, begin - kState.size()), key.substr(begin, last - begin), kind};
}

/// "optimizer.state.exp_avg.w" taken apart.
std::optional<StateName> own_state(std::string_view key) {
  if (!key.starts_with(kOwnState)) return std::nullopt;
  const auto rest = key.substr(kOwnState.size());
  const auto dot = rest.find('.');
  if (dot == std::string_view::npos || !holds(kStateKinds, rest.substr(0, dot))) return std::nullopt;
  return StateName{key.substr(0, kOptimizerPrefix.size()), rest.substr(dot + 1), rest.substr(0, dot)};
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

Result<std::int64_t> read_steps(const Source& source, const core::ManifestTensor& tensor) {
  double steps = -1;
  if (tensor.shape.empty() || tensor.shape == core::Shape{1}) {
    const core::Box whole{core::Shape(tensor.shape.size(), 0), tensor.shape};
    TRY(stream_box(source, tensor, core::DType::f64, whole, sizeof steps,
                   [&](std::span<const std::byte> bytes) -> Result<void> {
                     std::memcpy(&steps, bytes.data(), sizeof steps);
                     return {};
                   }));
  }
  if (!(steps >= 0 && steps < 1e15) || steps != std::floor(steps))
    return core::fail(Errc::corrupt, "'{}' is not a number of steps", tensor.key);
  return static_cast<std::int64_t>(steps);
}

class Adopted {
 public:
  explicit Adopted(Source& source) : source_(source) {}

  Result<TorchOptimizer> adopt() {
    TRY(find_state());
    TRY(find_model_prefix());
    TRY(find_steps());
    rename();
    return std::move(found_);
  }

 private:
  Result<void> find_state() {
    std::set<std::string> prefixes;
    for (const auto& tensor : source_.manifest.tensors) {
      const auto name = torch_state(tensor.key);
      if (!name) continue;
      prefixes.emplace(name->prefix);
      if (name->kind != kStep) parameters_.emplace(name->parameter);
    }
    if (prefixes.empty())
      return core::fail(
          Errc::invalid_argument,
          "{} has no state of an optimizer: expected tensors such as optim.state.<parameter>.exp_avg; "
          "leave --optimizer out",
          source_.path);
    if (prefixes.size() > 1)
      return core::fail(
          Errc::invalid_argument,
          "{} has the state of several optimizers, below '{}' and '{}'; import one that has one",
          source_.path, *prefixes.begin(), *prefixes.rbegin());
    found_.layout.optimizer = *prefixes.begin();
    found_.layout.model.clear();
    return {};
  }

  /// What parameters are called by beyond the names that the state gives them.
  Result<void> find_model_prefix() {
    std::set<std::string_view> keys;
    for (const auto& tensor : source_.manifest.tensors) keys.insert(tensor.key);
    const auto fits = [&](std::string_view prefix) {
      return std::all_of(parameters_.begin(), parameters_.end(), [&](const std::string& parameter) {
        return keys.contains(std::string(prefix) + parameter);
      });
    };
    if (parameters_.empty() || fits("")) return {};
    for (const auto key : keys) {
      const auto& some = *parameters_.begin();
      if (!key.ends_with(some) || torch_state(key)) continue;
      const auto prefix = key.substr(0, key.size() - some.size());
      if (!prefix.ends_with('.') || !fits(prefix)) continue;
      found_.layout.model = prefix;
      return {};
    }
    if (std::all_of(parameters_.begin(), parameters_.end(), is_number))
      return core::fail(
          Errc::invalid_argument,
          "the state of the optimizer in {} has parameters by number, as Optimizer.state_dict() gives "
          "them, and nothing says which they are; save what get_state_dict() of "
          "torch.distributed.checkpoint.state_dict gives",
          source_.path);
    return core::fail(
        Errc::invalid_argument,
        "{} has the optimizer's state of '{}', and no tensor of that name; leave --optimizer out, and "
        "rename what is there with --rename",
        source_.path, *parameters_.begin());
  }

  Result<void> find_steps() {
    const core::ManifestTensor* first = nullptr;
    for (const auto& tensor : source_.manifest.tensors) {
      const auto name = torch_state(tensor.key);
      if (!name || name->kind != kStep) continue;
      const auto steps = TRY(read_steps(source_, tensor));
      if (first == nullptr) {
        first = &tensor;
        found_.steps = steps;
      } else if (found_.steps != steps) {
        return core::fail(
            Errc::invalid_argument,
            "'{}' is {} and '{}' is {}: Troupe counts the optimizer's steps once for all parameters",
            first->key, *found_.steps, tensor.key, steps);
      }
    }
    return {};
  }

  void rename() {
    std::vector<core::ManifestTensor> kept;
    for (auto& tensor : source_.manifest.tensors) {
      const auto name = torch_state(tensor.key);
      if (name && name->kind == kStep) continue;
      if (name && holds(kOthers, name->kind)) {
        source_.left_out.push_back({tensor.key, "Troupe's optimizers keep nothing of this kind"});
        continue;
      }
      if (name) {
        tensor.key = std::string(kOwnState) + std::string(name->kind) + "." + std::string(name->parameter);
      } else if (tensor.key.starts_with(found_.layout.model)) {
        tensor.key.erase(0, found_.layout.model.size());
      } else {
        found_.layout.others.push_back(tensor.key);
      }
      kept.push_back(std::move(tensor));
    }
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    source_.manifest.tensors = std::move(kept);
  }

  Source& source_;
  TorchOptimizer found_;
  std::set<std::string> parameters_;
};

/// "optim." as the beginning of a path.
core::KeyPath path_of(std::string_view prefix) {
  core::KeyPath path;
  while (!prefix.empty()) {
    const auto dot = prefix.find('.');
    path.emplace_back(std::string(prefix.substr(0, dot)));
    prefix.remove_prefix(dot == std::string_view::npos ? prefix.size() : dot + 1);
  }
  return path;
}

TorchName torch_name(const TorchLayout& layout, std::string_view parameter, std::string_view kind) {
  TorchName name{layout.optimizer + "state." + std::string(parameter) + "." + std::string(kind),
                 path_of(layout.optimizer)};
  for (const auto part : {std::string_view("state"), parameter, kind})
    name.path.emplace_back(std::string(part));
  return name;
}

TorchName model_name(const TorchLayout& layout, const std::string& key) {
  TorchName name{layout.model + key, path_of(layout.model)};
  name.path.emplace_back(key);
  return name;
}

void flatten(const core::Value& value, core::KeyPath& path, std::vector<TorchValue>& into) {
  const auto* map = value.as_map();
  if (map == nullptr || map->empty()) {
    if (!path.empty()) into.push_back({path, value});
    return;
  }
  for (const auto& entry : map->entries()) {
    path.push_back(entry.key);
    flatten(entry.value, path, into);
    path.pop_back();
  }
}

}  // namespace

Result<TorchOptimizer> from_torch_names(Source& source) {
  return Adopted(source).adopt();
}

core::Value value_of(const TorchLayout& layout) {
  return core::Value::Map{{"model", layout.model},
                          {"optimizer", layout.optimizer},
                          {"others", core::Value::List(layout.others.begin(), layout.others.end())}};
}

TorchLayout torch_layout_of(const core::Manifest& manifest) {
  TorchLayout layout;
  const auto* kept = manifest.common.find(kTorchLayoutKey);
  if (kept == nullptr) return layout;
  const auto text = [&](const char* name, std::string& into) {
    const auto* value = kept->find(name);
    if (value != nullptr && value->as_string() != nullptr) into = *value->as_string();
  };
  text("model", layout.model);
  text("optimizer", layout.optimizer);
  const auto* others = kept->find("others");
  if (others == nullptr || others->as_list() == nullptr) return layout;
  for (const auto& other : *others->as_list()) {
    if (other.as_string() != nullptr) layout.others.push_back(*other.as_string());
  }
  return layout;
}

std::vector<TorchName> torch_names(const core::Manifest& manifest, const TorchLayout& layout) {
  const std::set<std::string_view> others(layout.others.begin(), layout.others.end());
  std::vector<TorchName> names;
  for (const auto& tensor : manifest.tensors) {
    if (const auto state = own_state(tensor.key)) {
      names.push_back(torch_name(layout, state->parameter, state->kind));
    } else if (others.contains(tensor.key)) {
      names.push_back({tensor.key, {tensor.key}});
    } else {
      names.push_back(model_name(layout, tensor.key));
    }
  }
  return names;
}

std::vector<TorchName> torch_step_names(const core::Manifest& manifest, const TorchLayout& layout) {
  std::set<std::string_view> parameters;
  for (const auto& tensor : manifest.tensors) {
    if (const auto state = own_state(tensor.key)) parameters.insert(state->parameter);
  }
  std::vector<TorchName> names;
  for (const auto parameter : parameters) names.push_back(torch_name(layout, parameter, kStep));
  return names;
}

std::vector<TorchValue> flattened(const core::Value& value) {
  std::vector<TorchValue> values;
  core::KeyPath path;
  flatten(value, path, values);
  return values;
}

}  // namespace troupe::apps
