#include "core/checkpoint/load_plan.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/errors.hpp"

namespace troupe::core {

namespace {

Result<void> check_shapes(const ManifestTensor& tensor, const LoadTarget& target) {
  TRY(check_shape(target.shape));
  if (!target.box.lies_in(target.shape))
    return fail(Errc::invalid_argument, "the part {} of '{}' does not lie in its shape {}",
                to_string(target.box), target.key, to_string(target.shape));
  if (tensor.shape == target.shape) return {};
  if (target.allow_shape_mismatch && tensor.shape.size() == target.shape.size()) return {};
  return fail(Errc::mismatch, "Global shape mismatch of '{}': the checkpoint has {}, {} is wanted",
              target.key, to_string(tensor.shape), to_string(target.shape));
}

}  // namespace

Result<LoadPlan> plan_load(const Manifest& manifest, std::span<const LoadTarget> targets) {
  LoadPlan plan;
  std::map<const ManifestTensor*, BoxIndex> indexes;
  std::map<std::pair<std::uint32_t, std::uint64_t>, LoadRead> reads;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const auto& target = targets[i];
    const auto* tensor = manifest.find(target.key);
    if (tensor == nullptr) return fail(Errc::not_found, "the checkpoint has no tensor '{}'", target.key);
    TRY(check_shapes(*tensor, target));
    auto index = indexes.find(tensor);
    if (index == indexes.end()) {
      std::vector<Box> boxes;
      for (const auto& shard : tensor->shards) boxes.push_back(shard.box);
      index = indexes.emplace(tensor, BoxIndex(std::move(boxes))).first;
    }
    std::int64_t filled = 0;
    for (auto position : index->second.touching(target.box)) {
      const auto& shard = tensor->shards[position];
      auto region = intersection(shard.box, target.box);
      filled += region->elements();
      auto& read = reads[{shard.file, shard.begin}];
      read.tensor = tensor;
      read.shard = &shard;
      read.copies.push_back({i, std::move(*region)});
    }
    if (filled < target.box.elements()) plan.zero.push_back(i);
  }
  for (auto& [place, read] : reads) {
    plan.bytes += read.shard->bytes();
    plan.reads.push_back(std::move(read));
  }
  return plan;
}

}  // namespace troupe::core
