// What members say of their operations, by members of any manners.
#include "gpu/collective/tcp/agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace troupe::gpu {
namespace {

constexpr std::uint64_t slot_of(std::uint64_t sequence) {
  return std::uint64_t{0x80} << 56 | sequence << 8;
}

class TcpAgreement : public ::testing::Test {
 protected:
  Operation all_reduce(std::size_t elements) {
    return {.kind = OperationKind::all_reduce,
            .input = {memory_.data(), elements * 4},
            .output = {memory_.data(), elements * 4}};
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  Agreement agreement_{{{10}, {11}, {12}}, 1};
};

TEST_F(TcpAgreement, ComparesWhicheverSideComesFirst) {
  const std::string same = Agreement::words_to(1, all_reduce(5));
  for (std::uint64_t sequence = 0; sequence < 100; ++sequence) {
    const bool is_heard_first = sequence % 2 == 0;
    if (!is_heard_first) agreement_.begin(slot_of(sequence), all_reduce(5));
    EXPECT_TRUE(agreement_.hear(0, slot_of(sequence), same));
    if (is_heard_first) agreement_.begin(slot_of(sequence), all_reduce(5));
    ASSERT_FALSE(agreement_.found().has_value()) << *agreement_.found();
  }
  // A member that is two ahead, and one that is behind.
  EXPECT_TRUE(agreement_.hear(2, slot_of(101), Agreement::words_to(1, all_reduce(6))));
  agreement_.begin(slot_of(100), all_reduce(5));
  EXPECT_TRUE(agreement_.hear(2, slot_of(99), Agreement::words_to(1, all_reduce(5))));
  EXPECT_FALSE(agreement_.found().has_value());
  agreement_.begin(slot_of(101), all_reduce(5));
  EXPECT_EQ(agreement_.found(),
            "rank 12 posted elements 6, but rank 11 posted 5; all members must post the same "
            "operations in the same order");
}

TEST_F(TcpAgreement, RefusesWhatAreNoWords) {
  const std::string words = Agreement::words_to(1, all_reduce(5));
  agreement_.begin(slot_of(0), all_reduce(5));
  for (std::size_t length = 0; length < words.size(); ++length)
    EXPECT_FALSE(agreement_.hear(0, slot_of(0), words.substr(0, length)));
  EXPECT_FALSE(agreement_.hear(0, slot_of(0), words + "x"));
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string noise = round % 2 == 0 ? words : std::string(random() % 64, '\0');
    for (char& each : noise) each = random() % 4 == 0 ? static_cast<char>(random()) : each;
    (void)agreement_.hear(static_cast<int>(random() % 3), random(), noise);
    Agreement nobody;
    EXPECT_EQ(nobody.most_bytes(), 0U);
  }
}

}  // namespace
}  // namespace troupe::gpu
