#include "actors/session/replicas.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <span>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

using core::Result;

namespace {

/// Copied from a device at once.
constexpr std::size_t kHashedAtOnce = std::size_t{8} << 20;

}  // namespace

/// A rank's part of something placed like this is another's where their coordinates agree along all axes that
/// cut it.
std::vector<core::Rank> Replicas::alike(std::size_t number, const core::Placements& placements) const {
  const auto& plan = in_.plan;
  const auto& domain = plan.inputs.domains[number];
  const auto cuts_of = [&](std::vector<int> coordinates) {
    coordinates = core::coordinates_in(domain, plan.domain(), coordinates);
    for (std::size_t axis = 0; axis < coordinates.size(); ++axis)
      if (placements[axis] != core::Placement::flat_shard) coordinates[axis] = 0;
    return coordinates;
  };
  const auto own = cuts_of(plan.coordinates(in_.rank()));
  auto ranks = plan.mesh.group(number == 0 ? core::GroupKind::dp_cp : core::GroupKind::edp, in_.rank());
  std::erase_if(ranks, [&](core::Rank rank) { return cuts_of(plan.coordinates(rank)) != own; });
  return ranks;
}

std::vector<SharedParameters> Replicas::buckets() const {
  std::vector<SharedParameters> all;
  const auto& plan = in_.plan;
  const auto here = plan.coordinates(in_.rank());
  std::map<std::pair<std::size_t, core::Placements>, std::vector<core::Rank>> known;
  for (const auto bucket : in_.buckets()) {
    const auto placements = plan.placements_of(bucket).parameters;
    if (plan.held(placements, bucket, here).size() == 0) continue;
    auto& ranks = known[{plan.domain_of(bucket), placements}];
    if (ranks.empty()) ranks = alike(plan.domain_of(bucket), placements);
    if (ranks.size() < 2) continue;
    all.push_back({fmt::format("bucket {} of rank {}", bucket.value, ranks.front().value), ranks,
                   plan.buckets[bucket].parameters});
  }
  return all;
}

std::vector<SharedParameters> Replicas::all() const {
  auto all = buckets();
  const auto tp = in_.plan.mesh.group(core::GroupKind::tp, in_.rank());
  if (tp.size() > 1) {
    SharedParameters whole{fmt::format("whole parameters of rank {}", tp.front().value), tp, {}};
    for (const auto index : in_.plan.specs.indices()) {
      const auto& spec = in_.plan.specs[index];
      if (spec.global_shape.empty() && !spec.is_expert) whole.parameters.push_back(index);
    }
    if (!whole.parameters.empty()) all.push_back(std::move(whole));
  }
  return all;
}

Result<std::vector<std::uint64_t>> Replicas::hashes() {
  // The trainer's kernels may have written the values.
  TRY(copies_.settle());
  std::vector<std::uint64_t> hashes;
  auto& device = in_.world.device();
  std::optional<gpu::Buffer> staging;
  for (const auto index : in_.plan.specs.indices()) {
    const auto memory = in_.data.tensors().resting_parameter(index).memory;
    if (device.is_host_memory()) {
      hashes.push_back(core::hash64({memory.data, memory.bytes}));
      continue;
    }
    core::HashStream hash;
    if (!staging) staging = TRY(device.allocate_staging(kHashedAtOnce));
    for (std::size_t at = 0; at < memory.bytes; at += kHashedAtOnce) {
      const auto bytes = std::min(kHashedAtOnce, memory.bytes - at);
      const auto piece = staging->view().subview(0, bytes);
      TRY(copies_.copy(memory.subview(at, bytes), piece));
      hash.add({piece.data, bytes});
    }
    hashes.push_back(hash.value());
  }
  return hashes;
}

std::uint64_t hash_of(const SharedParameters& shared, const std::vector<std::uint64_t>& hashes) {
  std::uint64_t hash = 0;
  for (const auto index : shared.parameters)
    hash = core::hash64(std::as_bytes(std::span(&hashes[index.value], 1)), hash);
  return hash;
}

}  // namespace troupe::actors
