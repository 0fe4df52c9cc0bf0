#include "apps/troupe/checkpoint/numbered_parameters.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "apps/files/optimizer_names.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::apps {

namespace {

using core::Errc;
using core::Result;

/// The value at "optim.param_groups", whose parts are keys of maps.
const core::Value* value_at(const core::Value& root, std::string_view path) {
  const auto* at = &root;
  while (!path.empty() && at != nullptr) {
    const auto dot = std::min(path.find('.'), path.size());
    const std::string part(path.substr(0, dot));
    path.remove_prefix(std::min(dot + 1, path.size()));
    const auto* map = at->as_map();
    if (map == nullptr) return nullptr;
    at = map->find(core::Key(part));
    // Indices of lists are numbers.
    if (at == nullptr && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos)
      at = map->find(core::Key(static_cast<std::int64_t>(std::stol(part))));
  }
  return at;
}

using Tensors = std::vector<const core::ManifestTensor*>;

/// A rank lists what it saves in the model's order; tensors that several ranks have may be another rank's.
bool has_order(const Source& source, const core::ManifestTensor& tensor) {
  if (source.form != SourceForm::dcp && source.form != SourceForm::accelerate) return true;
  if (tensor.shards.empty()) return true;
  const auto name =
      std::filesystem::path(source.manifest.files[tensor.shards.front().file].name).filename().string();
  return !name.starts_with("__") || name.starts_with("__0_");
}

Result<Tensors> candidates(const Source& source) {
  Tensors found;
  std::unordered_map<std::string_view, const core::ManifestTensor*> tensors;
  for (const auto& tensor : source.manifest.tensors) tensors.emplace(tensor.key, &tensor);
  std::optional<std::string> container;
  for (const auto& [key, path, whole, offset, carried] : source.torch->tensors) {
    const auto tensor = tensors.find(key);
    if (tensor == tensors.end() || torch_state(key) || !core::is_floating(tensor->second->dtype)) continue;
    const auto above = dotted({path.begin(), std::prev(path.end())});
    if (above.find("param_groups") != std::string::npos) continue;
    if (container && *container != above)
      return core::fail(Errc::invalid_argument, "there are tensors below '{}' and below '{}'", *container,
                        above);
    container = above;
    if (!has_order(source, *tensor->second))
      return core::fail(
          Errc::invalid_argument,
          "the model is not sharded and several ranks shared the saving, so that its order is lost");
    found.push_back(tensor->second);
  }
  return found;
}

Result<std::uint64_t> hash_of(const Source& source, const core::ManifestTensor& tensor) {
  core::HashStream hash;
  TRY(stream_box(source, tensor, tensor.dtype, core::Box::whole(tensor.shape), kStreamBytes,
                 [&](std::span<const std::byte> bytes) -> Result<void> {
                   hash.add(bytes);
                   return {};
                 }));
  return hash.value();
}

/// Without matrices that are equal to an earlier one, as those of a tied head are.
Result<Tensors> without_tied(const Source& source, const Tensors& all) {
  Tensors kept;
  std::set<std::pair<core::Shape, std::uint64_t>> seen;
  for (const auto* tensor : all) {
    if (tensor->shape.size() > 1) {
      const auto hash = TRY(hash_of(source, *tensor));
      if (!seen.emplace(tensor->shape, hash).second) continue;
    }
    kept.push_back(tensor);
  }
  return kept;
}

Result<std::vector<std::int64_t>> numbers_of(const std::vector<core::Value>& group) {
  std::vector<std::int64_t> numbers;
  for (const auto& member : group) {
    if (!member.as_int())
      return core::fail(Errc::invalid_argument, "param_groups do not number their parameters");
    numbers.push_back(*member.as_int());
  }
  return numbers;
}

}  // namespace

ParameterGroups parameter_groups(const core::Value& common, const std::string& optimizer) {
  const auto* groups = value_at(common, optimizer + "param_groups");
  ParameterGroups found;
  std::vector<const core::Value*> each;
  if (groups != nullptr && groups->as_map() != nullptr) {
    for (const auto& entry : groups->as_map()->entries()) each.push_back(&entry.value);
  } else if (groups != nullptr && groups->as_list() != nullptr) {
    for (const auto& group : *groups->as_list()) each.push_back(&group);
  }
  for (const auto* group : each) {
    const auto* params = group->as_map() != nullptr ? group->as_map()->find("params") : nullptr;
    if (params != nullptr && params->as_list() != nullptr) found.push_back(*params->as_list());
  }
  return found;
}

Result<std::map<std::int64_t, std::string>> numbered_parameters(
    const Source& source, const ParameterGroups& groups, const std::map<std::int64_t, core::Shape>& shapes) {
  if (!source.torch || groups.empty())
    return core::fail(Errc::invalid_argument, "there are no param_groups that say how many there are");
  std::vector<std::vector<std::int64_t>> numbers;
  std::size_t total = 0;
  for (const auto& group : groups) {
    numbers.push_back(TRY(numbers_of(group)));
    total += numbers.back().size();
  }
  auto tensors = TRY(candidates(source));
  if (tensors.size() > total) tensors = TRY(without_tied(source, tensors));
  if (tensors.size() != total)
    return core::fail(Errc::invalid_argument, "the optimizer has {} parameters and the model {} tensors",
                      total, tensors.size());
  std::map<std::int64_t, std::string> names;
  std::vector<std::size_t> next(numbers.size(), 0);
  for (const auto* tensor : tensors) {
    std::optional<std::size_t> chosen;
    for (std::size_t g = 0; g < numbers.size(); ++g) {
      if (next[g] == numbers[g].size()) continue;
      const auto shape = shapes.find(numbers[g][next[g]]);
      if (shape != shapes.end() && shape->second != tensor->shape) continue;
      if (chosen)
        return core::fail(Errc::invalid_argument, "'{}' may belong to group {} or {}", tensor->key, *chosen,
                          g);
      chosen = g;
    }
    if (!chosen)
      return core::fail(Errc::invalid_argument, "no moments have the shape of '{}', {}, where it comes",
                        tensor->key, core::to_string(tensor->shape));
    names.emplace(numbers[*chosen][next[*chosen]++], tensor->key);
  }
  return names;
}

}  // namespace troupe::apps
