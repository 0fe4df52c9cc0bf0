#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/checkpoint/sharded_tensor.hpp"
#include "core/result.hpp"

namespace troupe::core {

enum class DistributionPurpose : std::uint8_t { save, load };
std::string_view name_of(DistributionPurpose purpose) noexcept;

/// Who of a group of ranks that hold copies of the same shards writes (or reads) which one. Members are
/// counted from 0 in group order.
struct Distribution {
  struct Assignment {
    std::string key;
    Shape offset;  ///< with the key it names a shard
    std::int32_t owner = 0;
    std::int32_t holders = 0;
    std::int64_t bytes = 0;
    /// No member has the main replica: for a load only, after all others.
    bool cross_group = false;

    friend bool operator==(const Assignment&, const Assignment&) = default;
  };
  DistributionPurpose purpose = DistributionPurpose::save;
  /// Of everything that the result follows from: shards, shapes, dtypes, holders and main replicas. A stored
  /// distribution is used for the same fingerprint only.
  std::uint64_t fingerprint = 0;
  std::vector<Assignment> assignments;  ///< in the order in which they were decided

  /// Gives the shards of one member replica id 0 where it is the owner, else 1 (also where the group assigns
  /// nobody). Errc::invalid_argument when the distribution is for another purpose.
  Result<void> apply(DistributionPurpose for_purpose, std::int32_t member,
                     std::span<ShardedTensor> shards) const;
  /// Errc::mismatch, when this distribution was made for other shards or ranks.
  Result<void> check_fingerprint(std::uint64_t current) const;

  friend bool operator==(const Distribution&, const Distribution&) = default;
};

/// Collects what the members hold, one by one, and decides. Members that hold the same shards in the same
/// order cost a comparison per shard and four bytes.
class Distributor {
 public:
  /// The next member. Errc::mismatch names a shard that an earlier member describes with another dtype or
  /// shape, Errc::invalid_argument one that contradicts itself. After an error, begin anew.
  Result<void> add_member(std::span<const ShardedTensor> shards);

  std::uint64_t fingerprint() const;
  /// The greedy rule of Megatron-Core: shards with few holders first, then large ones, then by key and
  /// offset, each to the holder with the fewest bytes so far, of equal ones to the first.
  Distribution decide(DistributionPurpose purpose) const;

 private:
  struct Shard {
    ShardedTensor tensor;  ///< as its first holder describes it
    std::vector<std::int32_t> holders;
    bool has_main = false;
  };
  static std::uint64_t hash_of(const ShardedTensor& tensor);
  static bool is_same(const ShardedTensor& a, const ShardedTensor& b);
  Result<std::size_t> index_of(const ShardedTensor& tensor, std::size_t guess);

  std::vector<Shard> shards_;
  std::unordered_multimap<std::uint64_t, std::size_t> by_hash_;
  std::vector<std::size_t> last_member_;  ///< the shards of the member added last
  std::uint64_t members_hash_ = 0;
  std::int32_t members_ = 0;
};

/// A Distributor over all members at once.
Result<Distribution> distribute(DistributionPurpose purpose,
                                std::span<const std::vector<ShardedTensor>> members);

}  // namespace troupe::core
