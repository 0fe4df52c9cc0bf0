#include "apps/troupe/checkpoint/source_steps.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe::apps {

namespace {

constexpr std::array<std::string_view, 7> kNames{"step",    "global_step", "iteration",      "num_steps",
                                                 "n_steps", "train_step",  "completed_steps"};

bool is_name(std::string_view text) {
  return std::find(kNames.begin(), kNames.end(), text) != kNames.end();
}

const std::string* text_of(const core::Key& key) {
  return std::get_if<std::string>(&key);
}

/// Looks at a state's top, or at a container there.
void look(const core::Value& value, const std::string& above, std::vector<StepsSaid>& found) {
  const auto* map = value.as_map();
  if (map == nullptr) return;
  for (const auto& entry : map->entries()) {
    const auto* name = text_of(entry.key);
    if (name == nullptr) continue;
    const auto steps = entry.value.as_int();
    if (is_name(*name) && steps && *steps >= 0) found.push_back({*steps, above + *name});
    if (above.empty() && name->find("optim") == std::string::npos) look(entry.value, *name + ".", found);
  }
}

/// A scalar of integers; nothing where it cannot be read.
std::optional<std::int64_t> integer_of(const Source& source, const core::ManifestTensor& tensor) {
  const bool is_scalar = tensor.shape.empty() || tensor.shape == core::Shape{1};
  if (!is_scalar || (tensor.dtype != core::DType::i64 && tensor.dtype != core::DType::i32))
    return std::nullopt;
  std::int64_t wide = 0;
  std::int32_t narrow = 0;
  const bool is_wide = tensor.dtype == core::DType::i64;
  const auto done =
      stream_box(source, tensor, tensor.dtype, core::Box::whole(tensor.shape), sizeof wide,
                 [&](std::span<const std::byte> bytes) -> core::Result<void> {
                   void* place = is_wide ? static_cast<void*>(&wide) : &narrow;
                   std::memcpy(place, bytes.data(), std::min(bytes.size(), core::size_of(tensor.dtype)));
                   return {};
                 });
  if (!done) return std::nullopt;
  return is_wide ? wide : narrow;
}

}  // namespace

std::optional<StepsSaid> steps_said_by(Source& source) {
  if (source.steps) return StepsSaid{*source.steps, "a file beside them"};
  std::vector<StepsSaid> found;
  if (!source.has_values) look(source.manifest.common, "", found);
  if (source.torch) {
    for (const auto& [key, path, whole, offset, carried] : source.torch->tensors) {
      const auto* last = text_of(path.back());
      if (path.size() > 2 || last == nullptr || !is_name(*last) || key.find("optim") != std::string::npos)
        continue;
      const auto* tensor = source.manifest.find(key);
      const auto steps = tensor != nullptr ? integer_of(source, *tensor) : std::nullopt;
      if (steps && *steps >= 0) found.push_back({*steps, key});
    }
  }
  if (found.empty()) return std::nullopt;
  const auto& first = found.front();
  for (const auto& other : found) {
    if (other.steps == first.steps) continue;
    source.notes.push_back(fmt::format("'{}' says {} steps and '{}' {}: neither is taken, --step decides",
                                       first.where, first.steps, other.where, other.steps));
    return std::nullopt;
  }
  return StepsSaid{first.steps, fmt::format("'{}'", first.where)};
}

}  // namespace troupe::apps
