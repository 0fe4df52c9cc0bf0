#include "core/boxes/integrity.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

#include "core/errors.hpp"

namespace troupe::core {
namespace {

/// Number of names or places listed in a message.
constexpr std::size_t kNamed = 20;

template <class T>
struct Held {
  std::size_t rank = 0;
  const T* part = nullptr;
};

template <class T>
using ByKey = std::map<std::string_view, std::vector<Held<T>>>;

template <class T>
Result<ByKey<T>> by_key(std::span<const RankShards> ranks, const std::vector<T> RankShards::*parts) {
  std::unordered_map<std::string_view, std::vector<Held<T>>> found;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const T& part : ranks[rank].*parts) {
      if (auto valid = part.check(); !valid) {
        return fail(valid.error().code, "rank {}: {}", rank, valid.error().message);
      }
      found[part.key].push_back({rank, &part});
    }
  }
  return ByKey<T>(found.begin(), found.end());
}

Result<void> check_alike(const Held<ShardedTensor>& first, const Held<ShardedTensor>& other) {
  const auto differ = [&](std::string_view what) {
    return fail(Errc::mismatch, "'{}' has different {} on ranks {} and {}: {}, and {}", first.part->key, what,
                first.rank, other.rank, to_string(*first.part), to_string(*other.part));
  };
  const ShardedTensor& a = *first.part;
  const ShardedTensor& b = *other.part;
  if (a.dtype != b.dtype) return differ("dtypes");
  if (a.global_shape != b.global_shape) return differ("global shapes");
  if (a.is_regular() != b.is_regular()) return differ("kinds (one is regular, the other is not)");
  if (a.is_regular() && a.local_shape != b.local_shape) return differ("local shapes");
  return {};
}

/// The number of main replicas per cell; every cell must have one.
using CellCounts = std::map<Shape, std::size_t>;

std::string described(const CellCounts& wrong) {
  std::string text;
  std::size_t named = 0;
  for (const auto& [cell, count] : wrong) {
    if (named++ == kNamed) return text + fmt::format(" and {} more", wrong.size() - kNamed);
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", to_string(cell), count);
  }
  return text;
}

Result<void> check_grid(const std::vector<Held<ShardedTensor>>& parts) {
  const ShardedTensor& first = *parts.front().part;
  CellCounts counts;
  for (const auto& held : parts) {
    if (held.part->is_main_replica()) ++counts[held.part->grid_cell()];
  }
  const std::int64_t cells = elements_of(*first.axis_fragmentations);
  const std::int64_t missing = cells - std::ssize(counts);
  // Cells of parts without a main replica can be named without walking the whole grid.
  for (const auto& held : parts) counts.try_emplace(held.part->grid_cell(), 0);
  std::erase_if(counts, [](const auto& cell) { return cell.second == 1; });
  if (counts.empty() && missing == 0) return {};
  return fail(
      Errc::invalid_argument,
      "Invalid access pattern for '{}' of shape {} in a grid {}: {} of {} cells have no main replica; "
      "expected 1 per cell, found {{{}}}",
      first.key, to_string(first.global_shape), to_string(*first.axis_fragmentations), missing, cells,
      described(counts));
}

Result<void> check_boxes(const std::vector<Held<ShardedTensor>>& parts) {
  std::vector<Box> boxes;
  for (const auto& held : parts) {
    if (held.part->is_main_replica()) boxes.push_back(held.part->box());
  }
  const auto covered = check_exact_cover(parts.front().part->global_shape, boxes);
  if (covered) return {};
  return fail(covered.error().code, "'{}': {}", parts.front().part->key, covered.error().message);
}

Result<void> check_tensor(const std::vector<Held<ShardedTensor>>& parts) {
  for (const auto& held : parts) TRY(check_alike(parts.front(), held));
  if (elements_of(parts.front().part->global_shape) == 0) return {};
  return parts.front().part->is_regular() ? check_grid(parts) : check_boxes(parts);
}

Result<void> check_object(const std::vector<Held<ShardedObject>>& parts) {
  const Held<ShardedObject>& first = parts.front();
  std::map<Shape, std::vector<std::size_t>> writers;
  for (const auto& held : parts) {
    if (held.part->global_shape != first.part->global_shape) {
      return fail(Errc::mismatch, "the object '{}' has a grid {} on rank {} and {} on rank {}",
                  first.part->key, to_string(first.part->global_shape), first.rank,
                  to_string(held.part->global_shape), held.rank);
    }
    if (held.part->is_main_replica()) writers[held.part->global_offset].push_back(held.rank);
  }
  for (const auto& [cell, ranks] : writers) {
    if (ranks.size() == 1) continue;
    return fail(Errc::invalid_argument,
                "Duplicate ShardedObject keys: cell {} of '{}' has main replicas on ranks {}, expected one",
                to_string(cell), first.part->key, fmt::join(ranks, ", "));
  }
  const std::int64_t cells = elements_of(first.part->global_shape);
  if (std::ssize(writers) == cells) return {};
  return fail(Errc::invalid_argument,
              "{} of {} cells of the ShardedObject are missing: '{}' with a grid {} needs a main replica of "
              "each",
              cells - std::ssize(writers), cells, first.part->key, to_string(first.part->global_shape));
}

}  // namespace

Result<void> check_integrity(std::span<const RankShards> ranks) {
  const auto tensors = TRY(by_key(ranks, &RankShards::tensors));
  const auto objects = TRY(by_key(ranks, &RankShards::objects));
  for (const auto& [key, parts] : tensors) {
    if (objects.contains(key)) {
      return fail(Errc::mismatch, "'{}' is a tensor on rank {} and an object on rank {}; rename one", key,
                  parts.front().rank, objects.at(key).front().rank);
    }
    TRY(check_tensor(parts));
  }
  for (const auto& [key, parts] : objects) TRY(check_object(parts));
  return {};
}

}  // namespace troupe::core
