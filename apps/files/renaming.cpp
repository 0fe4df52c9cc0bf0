#include "apps/files/renaming.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "apps/files/optimizer_names.hpp"
#include "core/errors.hpp"

namespace troupe::apps {

using core::Errc;
using core::Result;

namespace {

constexpr std::array<std::string_view, 3> kWrappers{"_orig_mod", "_checkpoint_wrapped_module",
                                                    "_fsdp_wrapped_module"};
/// What DistributedDataParallel and DataParallel put before all names of a model.
constexpr std::string_view kParallel = "module.";
constexpr std::array<std::string_view, 6> kOptimizers{
    "optimizer", "optim", "optimizers", "optimizer_state_dict", "optim_state_dict", "optimizer_states"};

bool holds(std::span<const std::string_view> list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// Takes dotted parts out of a name, unless nothing would be left.
class PartDropper {
 public:
  explicit PartDropper(const WrapperOptions& options) {
    if (!options.keep) parts_.insert(kWrappers.begin(), kWrappers.end());
    parts_.insert(options.parts.begin(), options.parts.end());
  }

  std::string operator()(const std::string& name) {
    std::string kept;
    std::set<std::string_view> dropped;
    for (std::size_t begin = 0; begin <= name.size();) {
      const auto end = std::min(name.find('.', begin), name.size());
      const auto part = std::string_view(name).substr(begin, end - begin);
      if (const auto found = parts_.find(part); found != parts_.end()) {
        dropped.insert(*found);
      } else {
        if (!kept.empty()) kept += '.';
        kept += part;
      }
      begin = end + 1;
    }
    if (dropped.empty() || kept.empty()) return name;
    for (const auto part : dropped) ++counts_[part];
    return kept;
  }

  std::map<std::string_view, std::size_t>& counts() { return counts_; }

 private:
  std::set<std::string_view> parts_;
  std::map<std::string_view, std::size_t> counts_;
};

/// Where in a key the name of a parameter or buffer begins: "model." of "model.w", "optim.state." of
/// "optim.state.w.exp_avg".
std::size_t begin_of_parameter(const std::string& key, const core::KeyPath* path) {
  if (const auto state = torch_state(key))
    return static_cast<std::size_t>(state->parameter.data() - key.data());
  if (path == nullptr || path->size() < 2) return 0;
  const auto* last = std::get_if<std::string>(&path->back());
  return last != nullptr && key.ends_with(*last) ? key.size() - last->size() : 0;
}

/// The names of all tensors without "module." where a model has it before all of them.
std::unordered_map<std::string, std::string> without_parallel(const Source& source) {
  std::unordered_map<std::string_view, const core::KeyPath*> paths;
  if (source.torch) {
    for (const auto& [key, path, whole, offset, carried] : source.torch->tensors) paths.emplace(key, &path);
  }
  struct Group {
    std::vector<std::string> keys;
    bool all = true;
  };
  std::map<std::string, Group> groups;  // by what is before the name
  for (const auto& tensor : source.manifest.tensors) {
    const auto found = paths.find(tensor.key);
    const auto begin = begin_of_parameter(tensor.key, found == paths.end() ? nullptr : found->second);
    auto& group = groups[tensor.key.substr(0, begin)];
    group.all = group.all && std::string_view(tensor.key).substr(begin).starts_with(kParallel);
    group.keys.push_back(tensor.key);
  }
  std::unordered_map<std::string, std::string> names;
  for (const auto& [above, group] : groups) {
    if (!group.all) continue;
    for (const auto& key : group.keys)
      names.emplace(key, above + key.substr(above.size() + kParallel.size()));
  }
  return names;
}

}  // namespace

Result<Renaming> Renaming::parse(std::span<const std::string> rules) {
  Renaming renaming;
  for (const auto& rule : rules) {
    const auto middle = rule.find('=');
    if (middle == std::string::npos)
      return core::fail(Errc::invalid_argument,
                        "--rename '{}' is not a rule; write OLD=NEW, for example model.=", rule);
    renaming.rules_.push_back({rule.substr(0, middle), rule.substr(middle + 1)});
  }
  return renaming;
}

std::string Renaming::operator()(const std::string& original, const std::string& adopted) {
  for (const auto* name : {&original, &adopted}) {
    for (auto& rule : rules_) {
      if (!name->starts_with(rule.from)) continue;
      rule.is_used = true;
      return rule.to + name->substr(rule.from.size());
    }
  }
  return adopted;
}

std::string Renaming::unused() const {
  std::string names;
  for (const auto& rule : rules_) {
    if (!rule.is_used) names += fmt::format("{}'{}'", names.empty() ? "" : ", ", rule.from);
  }
  return names.empty() ? names : fmt::format("--rename: no name begins with {}", names);
}

Result<void> rename_all(Source& source, const std::function<std::string(const std::string&)>& name) {
  auto& tensors = source.manifest.tensors;
  std::unordered_map<std::string, std::string> names;
  std::unordered_set<std::string> taken;
  for (auto& tensor : tensors) {
    auto renamed = name(tensor.key);
    if (!taken.insert(renamed).second)
      return core::fail(Errc::invalid_argument, "two tensors would be called '{}'; make the rules narrower",
                        renamed);
    names.emplace(std::exchange(tensor.key, renamed), renamed);
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  if (!source.torch) return {};
  for (auto& place : source.torch->tensors) {
    if (const auto found = names.find(place.key); found != names.end()) place.key = found->second;
  }
  for (auto& added : source.torch->added) {
    if (const auto found = names.find(added); found != names.end()) added = found->second;
  }
  return {};
}

Result<void> rename_all(Source& source, Renaming& rules) {
  if (rules.is_empty()) return {};
  TRY(rename_all(source, [&](const std::string& key) { return rules(key, key); }));
  if (auto unused = rules.unused(); !unused.empty()) source.notes.push_back(std::move(unused));
  return {};
}

Result<void> drop_wrappers(Source& source, const WrapperOptions& options) {
  PartDropper dropper(options);
  auto done = rename_all(source, [&](const std::string& key) { return dropper(key); });
  std::size_t parallel = 0;
  if (done && !options.keep) {
    const auto names = without_parallel(source);
    parallel = names.size();
    done = rename_all(source, [&](const std::string& key) {
      const auto found = names.find(key);
      return found == names.end() ? key : found->second;
    });
  }
  if (!done)
    return core::fail(done.error().code, "without what wrappers put into names, {}: --keep-wrappers keeps it",
                      done.error().message);
  if (parallel > 0) dropper.counts()["module"] += parallel;
  std::string said;
  for (const auto& [part, count] : dropper.counts())
    said += fmt::format("{}{} ({} names)", said.empty() ? "" : ", ", part, count);
  if (!said.empty())
    source.notes.push_back(
        fmt::format("taken out of names, as wrappers put it there: {}; --keep-wrappers keeps it", said));
  return {};
}

void keep_weights_only(Source& source) {
  std::set<std::string> optimizers;  // what their names begin with
  for (const auto& tensor : source.manifest.tensors) {
    const auto state = torch_state(tensor.key);
    if (!state) continue;
    for (const char* part : {"state.", "param_groups."}) optimizers.insert(std::string(state->prefix) + part);
  }
  std::unordered_set<std::string_view> nested;
  if (source.torch) {
    for (const auto& [key, path, whole, offset, carried] : source.torch->tensors) {
      const auto* first = std::get_if<std::string>(&path.front());
      if (path.size() > 1 && first != nullptr && holds(kOptimizers, *first)) nested.insert(key);
    }
  }
  std::erase_if(source.manifest.tensors, [&](const core::ManifestTensor& tensor) {
    const auto& key = tensor.key;
    return key.starts_with(kOptimizerPrefix) || nested.contains(key) ||
           std::any_of(optimizers.begin(), optimizers.end(),
                       [&](const std::string& prefix) { return key.starts_with(prefix); });
  });
}

void leave_out_carried(Source& source) {
  if (!source.torch) return;
  std::unordered_map<std::string_view, std::string_view> types;
  for (const auto& place : source.torch->tensors) {
    if (!place.carried.empty()) types.emplace(place.key, place.carried);
  }
  std::erase_if(source.manifest.tensors, [&](const core::ManifestTensor& tensor) {
    const auto found = types.find(tensor.key);
    if (found == types.end()) return false;
    source.left_out.push_back(
        {tensor.key, fmt::format("it is a {} of PyTorch, carried as bytes", found->second)});
    return true;
  });
}

std::string common_container(const Source& source) {
  if (!source.torch) return {};
  std::unordered_map<std::string_view, const core::KeyPath*> paths;
  for (const auto& [key, path, whole, offset, carried] : source.torch->tensors) paths.emplace(key, &path);
  std::optional<std::string> common;
  for (const auto& tensor : source.manifest.tensors) {
    const auto found = paths.find(tensor.key);
    if (found == paths.end() || found->second->size() != 2) return {};
    const auto* first = std::get_if<std::string>(&found->second->front());
    if (first == nullptr || (common && *common != *first + ".") || !tensor.key.starts_with(*first + "."))
      return {};
    common = *first + ".";
  }
  return common.value_or("");
}

}  // namespace troupe::apps
