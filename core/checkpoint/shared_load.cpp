#include "core/checkpoint/shared_load.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <utility>

#include "core/boxes/distribution.hpp"
#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "core/hash.hpp"

namespace troupe::core {

namespace {

class SharedLoadPlanner {
 public:
  SharedLoadPlanner(const Manifest& manifest, const SharedTargets& targets)
      : manifest_(manifest), targets_(targets), world_(targets.own.size()) {}

  Result<SharedLoadPlan> plan() {
    for (const auto& read : TRY(plan_load(manifest_, targets_.common)).reads) {
      auto& shared = at(read);
      shared.for_all = true;
      shared.parts = {part_of(0, read, targets_.common)};
    }
    for (std::uint32_t rank = 0; rank < world_; ++rank) {
      const auto& own = targets_.own[rank];
      for (const auto& read : TRY(plan_load(manifest_, own)).reads) add(at(read), part_of(rank, read, own));
    }
    SharedLoadPlan plan;
    for (auto& [place, read] : reads_) plan.reads.push_back(std::move(read));
    choose_readers(plan);
    count(plan);
    return plan;
  }

 private:
  SharedRead& at(const LoadRead& read) {
    auto& shared = reads_[{read.shard->file, read.shard->begin}];
    shared.tensor = read.tensor;
    shared.shard = read.shard;
    return shared;
  }

  static void add(SharedRead& read, const SharedRead::Part& part) {
    if (!read.for_all) {
      read.parts.push_back(part);
      return;
    }
    // Rare enough that all ranks may receive what one rank needs in addition.
    auto& all = read.parts.front();
    all.begin = std::min(all.begin, part.begin);
    all.end = std::max(all.end, part.end);
  }

  void choose_readers(SharedLoadPlan& plan) const {
    // Tensors of a manifest are in the order of their keys.
    HolderSet everybody(world_);
    for (std::uint32_t rank = 0; rank < world_; ++rank) everybody[rank] = rank;
    std::vector<HolderSet> sets{everybody};
    for (const auto& rank : everybody) sets.push_back({rank});
    std::vector<HeldShard> held;
    for (const auto& read : plan.reads) {
      std::uint32_t set = 0;
      if (!read.for_all && read.parts.size() == 1) {
        set = 1 + read.parts.front().rank;
      } else if (!read.for_all) {
        set = static_cast<std::uint32_t>(sets.size());
        auto& holders = sets.emplace_back();
        for (const auto& part : read.parts) holders.push_back(part.rank);
      }
      const auto key = static_cast<std::uint32_t>(read.tensor - manifest_.tensors.data());
      held.push_back({set, key, &read.shard->box.offset, read.shard->bytes()});
    }
    const auto readers = distribute(DistributionPurpose::load, held, sets, world_);
    for (std::size_t i = 0; i < plan.reads.size(); ++i) plan.reads[i].reader = readers[i];
  }

  void count(SharedLoadPlan& plan) const {
    struct Rank {
      std::uint64_t needed = 0, assigned = 0, sent = 0, received = 0;
    };
    std::vector<Rank> ranks(world_);
    Rank all;  // what each rank has in common with the others
    for (const auto& read : plan.reads) {
      const auto bytes = read.shard->bytes();
      auto& reader = ranks[read.reader];
      plan.bytes.distinct += bytes;
      reader.assigned += bytes;
      if (read.for_all) {
        const auto moved = read.parts.front().end - read.parts.front().begin;
        all.needed += bytes;
        all.received += moved;
        reader.received -= moved;  // wraps around, and back again in the sum
        reader.sent += moved * (world_ - 1);
        continue;
      }
      for (const auto& part : read.parts) {
        ranks[part.rank].needed += bytes;
        if (part.rank == read.reader) continue;
        ranks[part.rank].received += part.end - part.begin;
        reader.sent += part.end - part.begin;
      }
    }
    for (const auto& rank : ranks) {
      auto& most = plan.bytes;
      most.needed += all.needed + rank.needed;
      most.most_needed = std::max(most.most_needed, all.needed + rank.needed);
      most.most_assigned = std::max(most.most_assigned, rank.assigned);
      most.most_moved = std::max({most.most_moved, rank.sent, all.received + rank.received});
    }
  }

  const Manifest& manifest_;
  const SharedTargets& targets_;
  std::size_t world_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, SharedRead> reads_;
};

}  // namespace

SharedRead::Part part_of(std::uint32_t rank, const LoadRead& read, std::span<const LoadTarget> targets) {
  const auto width = size_of(read.tensor->dtype);
  SharedRead::Part part{rank, read.shard->bytes(), 0};
  for (const auto& copy : read.copies) {
    const auto runs = copy_runs(read.shard->box, targets[copy.target].box, copy.region);
    if (runs.empty()) continue;
    part.begin = std::min(part.begin, static_cast<std::uint64_t>(runs.front().from) * width);
    part.end =
        std::max(part.end, static_cast<std::uint64_t>(runs.back().from + runs.back().elements) * width);
  }
  return part;
}

double seconds_of(LoadMode mode, const LoadBytes& bytes, const LoadCosts& costs) {
  const auto over = [](std::uint64_t count, double rate) { return static_cast<double>(count) / rate; };
  if (mode == LoadMode::exchange) {
    return std::max(over(bytes.most_assigned, costs.rank_bytes_per_second),
                    over(bytes.distinct, costs.storage_bytes_per_second)) +
           over(bytes.most_moved, costs.exchange_bytes_per_second);
  }
  return std::max(over(bytes.most_needed, costs.rank_bytes_per_second),
                  over(bytes.needed, costs.storage_bytes_per_second));
}

LoadMode choose_load(LoadMode wanted, const LoadBytes& bytes, const LoadCosts& costs) {
  if (bytes.most_moved == 0) return LoadMode::read;
  if (wanted != LoadMode::automatic) return wanted;
  const bool pays = seconds_of(LoadMode::exchange, bytes, costs) < seconds_of(LoadMode::read, bytes, costs);
  return pays ? LoadMode::exchange : LoadMode::read;
}

Result<SharedLoadPlan> plan_shared_load(const Manifest& manifest, const SharedTargets& targets) {
  return SharedLoadPlanner(manifest, targets).plan();
}

std::uint64_t hash_of(const SharedLoadPlan& plan) {
  std::vector<std::uint64_t> words;
  for (const auto& read : plan.reads) {
    words.insert(words.end(), {read.shard->file, read.shard->begin, read.shard->end, read.shard->hash,
                               read.reader, read.for_all ? 1U : 0U, read.parts.size()});
    for (const auto& part : read.parts) words.insert(words.end(), {part.rank, part.begin, part.end});
  }
  return hash64(std::as_bytes(std::span(words)));
}

}  // namespace troupe::core
