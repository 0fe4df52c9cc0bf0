#include "actors/session/first_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <utility>

#include "core/errors.hpp"
#include "core/hash.hpp"
#include "core/indices.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;

namespace {

/// Copied from a device at once.
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

/// What rank 0 has found: two ranks, and the name of what they share and have different values of.
struct Difference {
  core::Rank first;
  core::Rank second;
  std::string name;
};

/// `texts` are the ranks' lines of a hash and a name.
std::string first_difference_of(const std::vector<std::string>& texts) {
  std::map<std::string, std::pair<std::size_t, std::string>> known;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    std::istringstream lines(texts[rank]);
    std::string hash, name;
    while (lines >> hash && std::getline(lines >> std::ws, name)) {
      const auto& [first, expected] = known.try_emplace(name, rank, hash).first->second;
      if (expected != hash) return fmt::format("{} {} {}", first, rank, name);
    }
  }
  return {};
}

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

FirstValuesOfRanks::FirstValuesOfRanks(const SessionContext& context, GroupMaker groups, std::uint64_t number)
    : in_(context), groups_(groups), copies_(context), prefix_(fmt::format("values/{}/", number)) {}

/// Those of this rank's group, with their coordinates.
std::vector<std::pair<core::Rank, std::vector<int>>> FirstValuesOfRanks::members_of(
    core::GroupKind kind) const {
  const auto& domain = in_.plan.domain();
  const auto ranks = in_.plan.mesh.group(kind, in_.rank());
  // To ask the plan takes a look at all ranks, for each of them.
  const bool are_in_order = kind == core::GroupKind::dp_cp && domain.scale != core::ScaleRule::expert;
  std::vector<std::pair<core::Rank, std::vector<int>>> members;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    members.emplace_back(ranks[i], are_in_order ? at_place(domain, i) : in_.plan.coordinates(ranks[i]));
  return members;
}

std::vector<FirstValuesOfRanks::Shared> FirstValuesOfRanks::shared() const {
  std::vector<Shared> all;
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

/// A hash for the part of each parameter that this rank keeps.
Result<std::vector<std::uint64_t>> FirstValuesOfRanks::hashes() {
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
    if (!staging) staging = TRY(device.allocate_staging(kPieceBytes));
    for (std::size_t at = 0; at < memory.bytes; at += kPieceBytes) {
      const auto bytes = std::min(kPieceBytes, memory.bytes - at);
      const auto piece = staging->view().subview(0, bytes);
      TRY(copies_.copy(memory.subview(at, bytes), piece));
      hash.add({piece.data, bytes});
    }
    hashes.push_back(hash.value());
  }
  return hashes;
}

Result<void> FirstValuesOfRanks::compare() {
  if (in_.world.world_size().value == 1) return {};
  // The trainer's kernels may have written the values.
  TRY(copies_.settle());
  const auto own = TRY(hashes());
  auto all = shared();
  const auto tp = in_.plan.mesh.group(core::GroupKind::tp, in_.rank());
  if (tp.size() > 1) {
    Shared whole{fmt::format("whole parameters of rank {}", tp.front().value), tp, {}};
    for (const auto index : core::indices<core::ParameterIndex>(in_.plan.specs.size())) {
      const auto& spec = in_.plan.specs[index.value];
      if (spec.global_shape.empty() && !spec.is_expert) whole.parameters.push_back(index);
    }
    if (!whole.parameters.empty()) all.push_back(std::move(whole));
  }
  const auto difference = TRY(first_difference(all, own));
  if (difference.empty()) return {};
  in_.end_reading(prefix_);
  return core::fail(Errc::mismatch,
                    "{}; give all ranks the same first values (one seed, one file), or ask for those of the "
                    "first rank with SessionOptions::first_values",
                    difference);
}

/// The same on all ranks; empty if there is none.
Result<std::string> FirstValuesOfRanks::first_difference(const std::vector<Shared>& all,
                                                         const std::vector<std::uint64_t>& hashes) {
  const auto deadline = 3 * in_.options.step_deadline;
  auto& store = in_.rendezvous;
  const auto hash_of = [&](const Shared& one) {
    std::uint64_t hash = 0;
    for (const auto index : one.parameters)
      hash = core::hash64(std::as_bytes(std::span(&hashes[index.value], 1)), hash);
    return hash;
  };
  std::string text;
  for (const auto& one : all) text += fmt::format("{:016x} {}\n", hash_of(one), one.name);
  TRY(store.set(fmt::format("{}{}", prefix_, in_.rank().value), text));
  if (in_.is_first_rank()) {
    std::vector<std::string> texts;
    for (std::int32_t rank = 0; rank < in_.world.world_size().value; ++rank)
      texts.push_back(TRY(store.get(fmt::format("{}{}", prefix_, rank), deadline)));
    TRY(store.set(prefix_ + "verdict", first_difference_of(texts)));
  }
  std::istringstream found(TRY(store.get(prefix_ + "verdict", deadline)));
  Difference difference;
  if (!(found >> difference.first.value >> difference.second.value)) return std::string();
  std::getline(found >> std::ws, difference.name);
  const auto key = [&](core::Rank rank) { return fmt::format("{}parameters/{}", prefix_, rank.value); };
  if (in_.rank() == difference.first || in_.rank() == difference.second) {
    std::string own;
    for (const auto& one : all) {
      for (const auto index : one.parameters) {
        if (one.name == difference.name)
          own += fmt::format("{} {}\n", hashes[index.value], in_.plan.specs[index.value].name);
      }
    }
    TRY(store.set(key(in_.rank()), own));
  }
  std::istringstream ours(TRY(store.get(key(difference.first), deadline)));
  std::istringstream theirs(TRY(store.get(key(difference.second), deadline)));
  std::string our_line, their_line;
  while (std::getline(ours, our_line) && std::getline(theirs, their_line) && our_line == their_line) {
  }
  return fmt::format("rank {} has other first values of '{}' than rank {}", difference.second.value,
                     our_line.substr(std::min(our_line.size(), our_line.find(' ') + 1)),
                     difference.first.value);
}

Result<void> FirstValuesOfRanks::broadcast() {
  TRY(copies_.settle());
  for (const auto& one : shared()) TRY(broadcast(one));
  return compare();
}

Result<void> FirstValuesOfRanks::broadcast(const Shared& shared) {
  auto& device = in_.world.device();
  auto& group = made_[shared.ranks];
  if (!group) {
    std::uint64_t members = 0;
    for (const auto rank : shared.ranks) members = core::hash64(std::to_string(rank.value), members);
    group = TRY(groups_.of_hosts(fmt::format("values-{:016x}", members), shared.ranks));
    sending_ = TRY(in_.world.host_device().create_stream({"first values", 0}));
  }
  gpu::Buffer staging;
  if (!device.is_host_memory()) staging = TRY(device.allocate_staging(kPieceBytes));
  const bool is_first = shared.ranks.front() == in_.rank();
  for (const auto index : shared.parameters) {
    const auto memory = in_.data.resting_parameter(index).memory;
    for (std::size_t at = 0; at < memory.bytes; at += kPieceBytes) {
      const auto place = memory.subview(at, std::min(kPieceBytes, memory.bytes - at));
      const auto piece = device.is_host_memory() ? place : staging.view().subview(0, place.bytes);
      if (!device.is_host_memory() && is_first) TRY(copies_.copy(place, piece));
      TRY(send(*group, piece, in_.plan.specs[index.value].dtype, is_first));
      if (!device.is_host_memory() && !is_first) TRY(copies_.copy(piece, place));
    }
  }
  return {};
}

Result<void> FirstValuesOfRanks::send(gpu::Group& group, gpu::BufferView piece, core::DType dtype,
                                      bool is_first) {
  gpu::Operation operation;
  operation.kind = gpu::OperationKind::broadcast;
  operation.dtype = dtype;
  if (is_first) operation.input = piece;
  operation.output = piece;
  operation.deadline = in_.options.step_deadline;
  const auto status = TRY(group.post(operation, sending_.get()));
  TRY(copies_.wait(sending_.get()));
  return status->result().value_or(Result<void>{});
}

}  // namespace troupe::actors
