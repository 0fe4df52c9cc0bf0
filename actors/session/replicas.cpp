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

/// The coordinates of a place in the group of the domain's ranks.
std::vector<int> at_place(const core::Domain& domain, std::size_t place) {
  std::vector<int> coordinates(domain.sizes.size());
  for (std::size_t axis = domain.sizes.size(); axis-- > 0;) {
    const auto size = static_cast<std::size_t>(domain.sizes[axis]);
    coordinates[axis] = static_cast<int>(place % size);
    place /= size;
  }
  return coordinates;
}

}  // namespace

/// Those of this rank's group, with their coordinates.
std::vector<std::pair<core::Rank, std::vector<int>>> Replicas::members_of(core::GroupKind kind) const {
  const auto& domain = in_.plan.domain();
  const auto ranks = in_.plan.mesh.group(kind, in_.rank());
  // To ask the plan takes a look at all ranks, for each of them.
  const bool are_in_order = kind == core::GroupKind::dp_cp && domain.scale != core::ScaleRule::expert;
  std::vector<std::pair<core::Rank, std::vector<int>>> members;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    members.emplace_back(ranks[i], are_in_order ? at_place(domain, i) : in_.plan.coordinates(ranks[i]));
  return members;
}

std::vector<SharedParameters> Replicas::buckets() const {
  std::vector<SharedParameters> all;
  const auto& plan = in_.plan;
  const std::map groups{std::pair{core::GroupKind::dp_cp, members_of(core::GroupKind::dp_cp)},
                        std::pair{core::GroupKind::edp, members_of(core::GroupKind::edp)}};
  const auto here = plan.coordinates(in_.rank());
  for (const auto bucket : in_.buckets()) {
    const auto kind = plan.domain_of(bucket) == 0 ? core::GroupKind::dp_cp : core::GroupKind::edp;
    const auto range = [&](const std::vector<int>& coordinates) {
      return plan.held(plan.placements_of(bucket).parameters, bucket, coordinates);
    };
    const auto own = range(here);
    std::vector<core::Rank> ranks;
    for (const auto& [rank, coordinates] : groups.at(kind))
      if (range(coordinates) == own) ranks.push_back(rank);
    if (ranks.size() < 2 || own.size() == 0) continue;
    all.push_back({fmt::format("bucket {} of rank {}", bucket.value, ranks.front().value), std::move(ranks),
                   plan.buckets[bucket.value].parameters});
  }
  return all;
}

std::vector<SharedParameters> Replicas::all() const {
  auto all = buckets();
  const auto tp = in_.plan.mesh.group(core::GroupKind::tp, in_.rank());
  if (tp.size() > 1) {
    SharedParameters whole{fmt::format("whole parameters of rank {}", tp.front().value), tp, {}};
    for (const auto index : core::indices<core::ParameterIndex>(in_.plan.specs.size())) {
      const auto& spec = in_.plan.specs[index.value];
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
  for (const auto index : core::indices<core::ParameterIndex>(in_.plan.specs.size())) {
    const auto memory = in_.data.resting_parameter(index).memory;
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
