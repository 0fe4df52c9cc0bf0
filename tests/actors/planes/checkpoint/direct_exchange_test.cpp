#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "actors/planes/checkpoint/load_exchange.hpp"
#include "core/checkpoint/survivors.hpp"

namespace troupe::actors {
namespace {

constexpr int kSharedTensors = 6;
constexpr std::size_t kBytesOfTensor = 400;  // of each

core::SaveStructure structure_of_all() {
  core::SaveStructure all;
  for (int i = 0; i < kSharedTensors; ++i) {
    all.tensors.push_back({"t" + std::to_string(i), core::DType::f32, {100}});
    all.pieces.push_back({static_cast<std::uint32_t>(i), {{0}, {100}}});
  }
  return all;
}

bool is_part_of(const std::byte* at, const std::vector<std::byte>& memory) {
  return at >= memory.data() && at < memory.data() + memory.size();
}

/// Ranks 0 and 2 have all that rank 1 wants. Returns how many bytes were neither packed nor unpacked.
std::size_t moved_directly(std::uint64_t exchange_bytes) {
  const auto all = structure_of_all();
  const std::vector<core::SurvivalPart> parts{{{&all}, nullptr}, {{}, &all}, {{&all}, nullptr}};
  const auto survival = core::plan_survival(parts).value();
  std::vector<std::byte> held(kSharedTensors * kBytesOfTensor), taken(held.size());
  for (std::size_t i = 0; i < held.size(); ++i) held[i] = static_cast<std::byte>(i * 31 + i / 251);
  std::vector<LoadExchange> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    LoadExchange::Wanted wanted;
    if (rank == 1) {
      wanted.targets = core::targets_of(all);
      for (std::size_t i = 0; i < kSharedTensors; ++i)
        wanted.memory.push_back(std::span(taken).subspan(i * kBytesOfTensor, kBytesOfTensor));
    }
    ranks.push_back(LoadExchange::create(survival->manifest, survival->plan, {rank}, {3}, std::move(wanted),
                                         exchange_bytes)
                        .value());
    const auto memory_of = [&, rank](const core::ManifestShard& shard) {
      return rank == 1 ? std::span<const std::byte>{}
                       : std::span<const std::byte>(held).subspan(shard.begin, kBytesOfTensor);
    };
    EXPECT_TRUE(ranks.back().take_from(memory_of, nullptr, LoadExchange::Source::lasting));
  }

  std::size_t direct = 0;
  for (std::uint64_t round = 0; round < ranks[1].rounds(); ++round) {
    std::vector<std::byte> arrived;
    bool is_given_directly = true;
    for (const int giver : {0, 2}) {
      std::vector<std::byte> buffer(ranks[static_cast<std::size_t>(giver)].sent(round)[1]);
      const auto given = ranks[static_cast<std::size_t>(giver)].pack(buffer).value();
      EXPECT_EQ(given.size(), buffer.size());
      is_given_directly &= given.empty() || is_part_of(given.data(), held);
      arrived.insert(arrived.end(), given.begin(), given.end());
    }
    auto place = ranks[1].place_of(round);
    EXPECT_EQ(is_given_directly, !place.empty()) << "round " << round;
    if (place.empty()) place = arrived;
    if (is_part_of(place.data(), taken)) direct += place.size();
    std::copy(arrived.begin(), arrived.end(), place.begin());
    EXPECT_TRUE(ranks[1].unpack(place));
  }
  EXPECT_EQ(taken, held) << exchange_bytes;
  return direct;
}

TEST(ExchangeForOneRank, MovesBytesFromMemoryToMemory) {
  EXPECT_EQ(moved_directly(80), kSharedTensors * kBytesOfTensor);
  EXPECT_EQ(moved_directly(400), kSharedTensors * kBytesOfTensor);
}

TEST(ExchangeForOneRank, PacksRoundsThatTwoTensorsShare) {
  const auto direct = moved_directly(160);
  EXPECT_GT(direct, 0U);
  EXPECT_LT(direct, kSharedTensors * kBytesOfTensor);
}

}  // namespace
}  // namespace troupe::actors
