#include "core/checkpoint/distribution.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>

#include "core/hash.hpp"

namespace troupe::core {
namespace {

std::uint64_t hash_numbers(const Shape& numbers, std::uint64_t seed) {
  return hash64(std::as_bytes(std::span(numbers)), seed);
}

/// A hash of `value` that continues `seed`.
std::uint64_t chain(std::uint64_t seed, std::uint64_t value) {
  const std::array<std::uint64_t, 1> words{value};
  return hash64(std::as_bytes(std::span(words)), seed);
}

}  // namespace

std::string_view name_of(DistributionPurpose purpose) noexcept {
  return purpose == DistributionPurpose::save ? "save" : "load";
}

Result<void> Distribution::apply(DistributionPurpose for_purpose, std::int32_t member,
                                 std::span<ShardedTensor> shards) const {
  if (for_purpose != purpose) {
    return fail(Errc::invalid_argument, "a distribution for a {} can not be used for a {}; make one for it",
                name_of(purpose), name_of(for_purpose));
  }
  std::set<std::pair<std::string_view, const Shape&>> own;
  for (const Assignment& assignment : assignments) {
    if (assignment.owner == member) own.emplace(assignment.key, assignment.offset);
  }
  for (ShardedTensor& shard : shards) {
    shard.replica_id = {own.contains({shard.key, shard.global_offset}) ? 0 : 1};
  }
  return {};
}

Result<void> Distribution::check_fingerprint(std::uint64_t current) const {
  if (current == fingerprint) return {};
  return fail(Errc::mismatch,
              "this distribution was made for other shards or ranks (fingerprint {:016x}, now {:016x}); "
              "remove it and make a new one",
              fingerprint, current);
}

std::uint64_t Distributor::hash_of(const ShardedTensor& tensor) {
  return hash_numbers(tensor.global_offset, hash64(tensor.key));
}

bool Distributor::is_same(const ShardedTensor& a, const ShardedTensor& b) {
  return a.key == b.key && a.global_offset == b.global_offset;
}

Result<std::size_t> Distributor::index_of(const ShardedTensor& tensor, std::size_t guess) {
  if (guess < shards_.size() && is_same(shards_[guess].tensor, tensor)) return guess;
  const std::uint64_t hash = hash_of(tensor);
  const auto [begin, end] = by_hash_.equal_range(hash);
  const auto found = std::find_if(
      begin, end, [&](const auto& entry) { return is_same(shards_[entry.second].tensor, tensor); });
  if (found != end) return found->second;
  TRY(tensor.check());
  by_hash_.emplace(hash, shards_.size());
  shards_.emplace_back().tensor = tensor;
  return shards_.size() - 1;
}

Result<void> Distributor::add_member(std::span<const ShardedTensor> shards) {
  std::vector<std::size_t> indices;
  indices.reserve(shards.size());
  std::vector<std::uint64_t> facts;
  facts.reserve(shards.size());
  for (const ShardedTensor& tensor : shards) {
    const std::size_t at = indices.size();
    const std::size_t index =
        TRY(index_of(tensor, at < last_member_.size() ? last_member_[at] : shards_.size()));
    Shard& shard = shards_[index];
    if (shard.tensor.dtype != tensor.dtype || shard.tensor.local_shape != tensor.local_shape ||
        shard.tensor.global_shape != tensor.global_shape) {
      return fail(Errc::mismatch, "members of a group describe one shard differently: {}, and {}",
                  to_string(shard.tensor), to_string(tensor));
    }
    if (shard.holders.empty() || shard.holders.back() != members_) shard.holders.push_back(members_);
    shard.has_main |= tensor.is_main_replica();
    indices.push_back(index);
    facts.push_back(index << 1 | static_cast<std::uint64_t>(tensor.is_main_replica()));
  }
  members_hash_ = chain(hash64(std::as_bytes(std::span(facts)), members_hash_), facts.size());
  last_member_ = std::move(indices);
  ++members_;
  return {};
}

std::uint64_t Distributor::fingerprint() const {
  std::uint64_t hash = chain(members_hash_, static_cast<std::uint64_t>(members_));
  for (const Shard& shard : shards_) {
    hash = chain(hash, hash_of(shard.tensor));
    hash = hash_numbers(shard.tensor.local_shape, hash);
    hash = hash_numbers(shard.tensor.global_shape, hash);
    hash = chain(hash, static_cast<std::uint64_t>(shard.tensor.dtype));
  }
  return hash;
}

Distribution Distributor::decide(DistributionPurpose purpose) const {
  std::vector<const Shard*> candidates;
  for (const Shard& shard : shards_) {
    if (shard.has_main || purpose == DistributionPurpose::load) candidates.push_back(&shard);
  }
  std::sort(candidates.begin(), candidates.end(), [](const Shard* a, const Shard* b) {
    using Order = std::tuple<bool, std::size_t, std::int64_t, std::string_view, const Shape&>;
    const auto order_of = [](const Shard& shard) {
      return Order(!shard.has_main, shard.holders.size(), -shard.tensor.bytes(), shard.tensor.key,
                   shard.tensor.global_offset);
    };
    return order_of(*a) < order_of(*b);
  });

  Distribution result{.purpose = purpose, .fingerprint = fingerprint()};
  result.assignments.reserve(candidates.size());
  std::vector<std::int64_t> assigned(static_cast<std::size_t>(members_));
  const auto load_of = [&](std::int32_t member) -> std::int64_t& {
    return assigned[static_cast<std::size_t>(member)];
  };
  for (const Shard* shard : candidates) {
    // Holders are in ascending order, and the first of equal ones is taken.
    const std::int32_t owner =
        *std::min_element(shard->holders.begin(), shard->holders.end(),
                          [&](std::int32_t a, std::int32_t b) { return load_of(a) < load_of(b); });
    const std::int64_t bytes = shard->tensor.bytes();
    load_of(owner) += bytes;
    result.assignments.push_back({.key = shard->tensor.key,
                                  .offset = shard->tensor.global_offset,
                                  .owner = owner,
                                  .holders = static_cast<std::int32_t>(shard->holders.size()),
                                  .bytes = bytes,
                                  .cross_group = !shard->has_main});
  }
  return result;
}

Result<Distribution> distribute(DistributionPurpose purpose,
                                std::span<const std::vector<ShardedTensor>> members) {
  Distributor distributor;
  for (const auto& member : members) TRY(distributor.add_member(member));
  return distributor.decide(purpose);
}

}  // namespace troupe::core
