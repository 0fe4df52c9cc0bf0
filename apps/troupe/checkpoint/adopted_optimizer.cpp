#include "apps/troupe/checkpoint/adopted_optimizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "apps/files/optimizer_names.hpp"
#include "apps/files/strided_files.hpp"
#include "apps/troupe/checkpoint/numbered_parameters.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

constexpr std::size_t kMostNamed = 3;
constexpr std::array<std::byte, 8> kZero{};

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string_view::npos;
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

/// "'a', 'b', 'c' and 4 more".
std::string some_of(const std::set<std::string>& names) {
  std::string text;
  std::size_t count = 0;
  for (const auto& name : names) {
    if (count++ == kMostNamed) break;
    text += fmt::format("{}'{}'", text.empty() ? "" : ", ", name);
  }
  if (names.size() > kMostNamed) text += fmt::format(" and {} more", names.size() - kMostNamed);
  return text;
}

class Adopted {
 public:
  Adopted(Source& source, Renaming& rules) : source_(source), rules_(rules) {}

  Result<std::optional<std::int64_t>> adopt() {
    TRY(find_state());
    groups_ = parameter_groups(source_.manifest.common, optimizer_);
    TRY(find_parameters());
    TRY(find_steps());
    add_zeros();
    TRY(rename());
    if (auto unused = rules_.unused(); !unused.empty()) source_.notes.push_back(std::move(unused));
    return steps_;
  }

 private:
  Result<void> find_state() {
    std::set<std::string> prefixes;
    for (const auto& tensor : source_.manifest.tensors) {
      const auto name = torch_state(tensor.key);
      if (!name) continue;
      prefixes.emplace(name->prefix);
      if (name->kind != kStepKind) parameters_.emplace(name->parameter);
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
    optimizer_ = *prefixes.begin();
    return {};
  }

  /// What the state calls its parameters, and the names of their tensors.
  Result<void> find_parameters() {
    std::set<std::string_view> keys;
    for (const auto& tensor : source_.manifest.tensors) keys.insert(tensor.key);
    const auto fits = [&](const std::string& prefix) {
      return std::all_of(parameters_.begin(), parameters_.end(),
                         [&](const std::string& parameter) { return keys.contains(prefix + parameter); });
    };
    if (parameters_.empty() || fits("")) return take_parameters("");
    const auto& some = *parameters_.begin();
    for (const auto key : keys) {
      if (!key.ends_with(some) || torch_state(key)) continue;
      const std::string prefix(key.substr(0, key.size() - some.size()));
      if (prefix.ends_with('.') && fits(prefix)) return take_parameters(prefix);
    }
    if (std::all_of(parameters_.begin(), parameters_.end(), is_number)) return find_numbered();
    return core::fail(
        Errc::invalid_argument,
        "{} has the optimizer's state of '{}', and no tensor of that name; leave --optimizer out, and "
        "rename what is there with --rename",
        source_.path, *parameters_.begin());
  }

  Result<void> take_parameters(const std::string& prefix) {
    model_ = prefix;
    for (const auto& parameter : parameters_) tensors_.emplace(parameter, prefix + parameter);
    return {};
  }

  Result<void> find_numbered() {
    std::map<std::int64_t, core::Shape> shapes;
    for (const auto& tensor : source_.manifest.tensors) {
      const auto name = torch_state(tensor.key);
      if (name && is_shared_kind(name->kind))
        shapes.try_emplace(std::stol(std::string(name->parameter)), tensor.shape);
    }
    const auto found = numbered_parameters(source_, groups_, shapes);
    if (!found)
      return core::fail(
          Errc::invalid_argument,
          "the state of the optimizer in {} has parameters by number, as Optimizer.state_dict() gives "
          "them, and nothing says which they are: {}; save what get_state_dict() of "
          "torch.distributed.checkpoint.state_dict gives",
          source_.path, found.error().message);
    model_ = common_prefix(*found);
    for (const auto& [number, key] : *found) tensors_.emplace(fmt::format("{}", number), key);
    source_.notes.push_back(
        fmt::format("the optimizer numbers its parameters; they are the model's {} tensors in their order",
                    found->size()));
    return {};
  }

  /// The container of a nested state, "model.", in which all parameters are.
  std::string common_prefix(const std::map<std::int64_t, std::string>& found) const {
    for (const auto& [key, path, whole, offset, carried] : source_.torch->tensors) {
      if (path.size() < 2 || found.empty() || key != found.begin()->second) continue;
      auto above = dotted({path.begin(), std::prev(path.end())}) + ".";
      if (key.starts_with(above)) return above;
    }
    return {};
  }

  Result<void> find_steps() {
    std::map<std::string, std::int64_t> counts;
    for (const auto& tensor : source_.manifest.tensors) {
      const auto name = torch_state(tensor.key);
      if (!name || name->kind != kStepKind) continue;
      const auto steps = TRY(read_steps(source_, tensor));
      counts.emplace(name->parameter, steps);
      steps_ = std::max(steps_.value_or(0), steps);
    }
    std::set<std::string> fewer;
    for (const auto& [parameter, steps] : counts) {
      if (steps != *steps_) fewer.insert(fmt::format("{} ({})", name_of(parameter), steps));
    }
    if (!fewer.empty())
      source_.notes.push_back(fmt::format(
          "the optimizer took {} steps, and of some parameters fewer: {}; they go on from their own counts",
          *steps_, some_of(fewer)));
    for (const auto& [parameter, steps] : counts) note_missed(parameter, *steps_ - steps);
    return {};
  }

  void note_missed(const std::string& parameter, std::int64_t missed) {
    const auto found = tensors_.find(parameter);
    if (missed > 0 && found != tensors_.end()) missed_.emplace(found->second, missed);
  }

  std::string name_of(const std::string& parameter) const {
    const auto found = tensors_.find(parameter);
    return found == tensors_.end() ? parameter : found->second.substr(model_.size());
  }

  /// The tensors that the optimizer has, as far as the files say: of its groups, or all floating ones.
  std::set<std::string> trained() const {
    std::set<std::string> keys;
    for (const auto& [parameter, key] : tensors_) keys.insert(key);
    bool is_said = false;
    std::unordered_map<std::string, std::string> current;  // by what the name was, without its container
    if (source_.torch) {
      for (const auto& [key, path, whole, offset, carried] : source_.torch->tensors) {
        const auto* last = std::get_if<std::string>(&path.back());
        if (last != nullptr && key.starts_with(model_) && !torch_state(key)) current.emplace(*last, key);
      }
    }
    for (const auto& group : groups_) {
      for (const auto& member : group) {
        is_said = true;
        const auto* name = member.as_string();
        const auto found = name != nullptr ? current.find(*name) : current.end();
        if (found != current.end()) keys.insert(found->second);
        if (name != nullptr && source_.manifest.find(model_ + *name) != nullptr) keys.insert(model_ + *name);
      }
    }
    if (is_said) return keys;
    for (const auto& tensor : source_.manifest.tensors) {
      if (tensor.key.starts_with(model_) && !torch_state(tensor.key) && core::is_floating(tensor.dtype))
        keys.insert(tensor.key);
    }
    return keys;
  }

  /// A parameter that never had a gradient has no state; a session wants one.
  void add_zeros() {
    std::map<std::string, std::set<std::string>> kinds;  // by key of the parameter
    std::set<std::string> all;
    for (const auto& tensor : source_.manifest.tensors) {
      const auto name = torch_state(tensor.key);
      if (!name || name->kind == "fp32_param" || !is_shared_kind(name->kind)) continue;
      const auto found = tensors_.find(std::string(name->parameter));
      if (found == tensors_.end()) continue;
      kinds[found->second].emplace(name->kind);
      all.emplace(name->kind);
    }
    std::set<std::string> named;
    for (const auto& key : trained()) {
      for (const auto& kind : all) {
        if (kinds[key].contains(kind)) continue;
        const auto* tensor = source_.manifest.find(key);
        if (tensor == nullptr) continue;
        named.insert(key.substr(model_.size()));
        if (kinds[key].empty() && steps_.value_or(0) > 0) missed_.emplace(key, *steps_);
        zeros_.push_back({kind, key, *tensor});
      }
    }
    if (!named.empty())
      source_.notes.push_back(
          fmt::format("the optimizer has nothing of {}: moments of zero", some_of(named)));
  }

  core::ManifestTensor zero_tensor(const core::ManifestTensor& like, std::string key, StridedFiles& files) {
    core::ManifestTensor zero{std::move(key), like.dtype, like.shape, {}};
    const auto width = core::size_of(like.dtype);
    if (core::elements_of(like.shape) == 0) return zero;
    if (!zero_file_) {
      zero_file_ = static_cast<std::uint32_t>(source_.manifest.files.size());
      source_.manifest.files.push_back({"zeros", 0, 0, 0});
    }
    const auto begin = files.append(
        "zeros", {std::span(kZero).first(width), width, like.shape, core::Shape(like.shape.size(), 0)});
    const auto bytes = static_cast<std::uint64_t>(core::elements_of(like.shape)) * width;
    source_.manifest.files[*zero_file_].bytes = begin + bytes;
    zero.shards.push_back({core::Box::whole(like.shape), *zero_file_, begin, begin + bytes, 0});
    return zero;
  }

  /// What a tensor of the model or of neither is called from now on.
  std::string model_name(const std::string& key) {
    return rules_(key, key.starts_with(model_) ? key.substr(model_.size()) : key);
  }

  Result<void> rename() {
    std::set<std::string> kept;
    std::set<std::string> dropped;
    std::unordered_map<std::string, std::string> names;
    for (const auto& tensor : source_.manifest.tensors) {
      const auto name = torch_state(tensor.key);
      const auto parameter = name ? tensors_.find(std::string(name->parameter)) : tensors_.end();
      if (!name) {
        names.emplace(tensor.key, model_name(tensor.key));
      } else if (is_shared_kind(name->kind) && parameter != tensors_.end()) {
        names.emplace(tensor.key,
                      fmt::format("{}{}.{}", kOwnState, name->kind, model_name(parameter->second)));
      } else if (name->kind == kStepKind && source_.has_values) {
        dropped.insert(tensor.key);  // the values have it
      } else if (name->kind != kStepKind) {
        kept.insert(tensor.key);
      }
    }
    std::erase_if(source_.manifest.tensors, [&](const auto& tensor) { return dropped.contains(tensor.key); });
    if (!kept.empty())
      source_.notes.push_back(
          fmt::format("kept under their names, as Troupe's optimizers do not use them: {}", some_of(kept)));
    TRY(rename_all(source_, [&](const std::string& key) {
      const auto found = names.find(key);
      return found == names.end() ? key : found->second;
    }));
    place_missed();
    return place_zeros();
  }

  void place_missed() {
    for (const auto& [key, steps] : missed_) source_.steps_missed.emplace(model_name(key), steps);
  }

  Result<void> place_zeros() {
    if (zeros_.empty()) return {};
    auto files = std::make_unique<StridedFiles>(std::move(source_.storage));
    auto& tensors = source_.manifest.tensors;
    for (const auto& [kind, key, like] : zeros_) {
      tensors.push_back(zero_tensor(like, fmt::format("{}{}.{}", kOwnState, kind, model_name(key)), *files));
      if (source_.torch) source_.torch->added.push_back(tensors.back().key);
    }
    source_.storage = std::move(files);
    std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    return {};
  }

  struct Zero {
    std::string kind;
    std::string key;  ///< of the parameter
    core::ManifestTensor like;
  };

  Source& source_;
  Renaming& rules_;
  std::string optimizer_;                       ///< what names of its state begin with
  std::string model_;                           ///< what names of parameters begin with
  std::set<std::string> parameters_;            ///< as the state calls them
  std::map<std::string, std::string> tensors_;  ///< their keys
  std::optional<std::int64_t> steps_;
  core::StepsMissed missed_;  ///< by their keys
  ParameterGroups groups_;
  std::vector<Zero> zeros_;
  std::optional<std::uint32_t> zero_file_;
};

}  // namespace

Result<std::optional<std::int64_t>> from_torch_names(Source& source, Renaming& rules) {
  return Adopted(source, rules).adopt();
}

}  // namespace troupe::apps
