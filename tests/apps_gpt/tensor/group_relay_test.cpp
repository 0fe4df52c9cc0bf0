#include "apps/gpt/stage/group_relay.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "core/errors.hpp"
#include "tests/apps_gpt/tensor/members.hpp"

namespace troupe::apps::gpt {
namespace {

/// Each of two members asks with three threads, which come in any order; thread t of one meets thread t of
/// the other, and none of them another one's.
TEST(GroupRelay, LetsThreadsOfAMemberMeetTheirLikesInTheOtherMembers) {
  constexpr std::size_t kThreads = 3;
  play_members<float>(2, [](TensorGroup<float>& group) {
    GroupRelay<float> relay(group, kThreads);
    for (int pass = 0; pass < 20; ++pass) {
      std::vector<std::vector<float>> seen(kThreads);
      {
        std::vector<std::jthread> threads;
        for (std::size_t t = 0; t < kThreads; ++t) {
          threads.emplace_back([&, t] {
            auto& own = relay.member(t);
            EXPECT_EQ(own.size(), 2U);
            EXPECT_EQ(own.index(), group.index());
            std::vector<float> sum{static_cast<float>(10 * t + own.index())};
            std::vector<float> all(2);
            EXPECT_TRUE(own.sum(sum));
            EXPECT_TRUE(
                own.gather(std::vector<float>{static_cast<float>(100 * t + own.index())}, all, {1, 1}));
            seen[t] = {sum[0], all[0], all[1]};
            relay.leave();
          });
        }
        relay.serve();
      }
      for (std::size_t t = 0; t < kThreads; ++t) {
        const auto place = static_cast<float>(t);
        EXPECT_EQ(seen[t], (std::vector<float>{20 * place + 1, 100 * place, 100 * place + 1}));
      }
    }
  });
}

TEST(GroupRelay, ServesThoseWhoStayWhenOneHasLeft) {
  play_members<float>(2, [](TensorGroup<float>& group) {
    GroupRelay<float> relay(group, 2);
    std::vector<float> sum{1};
    {
      std::jthread gone([&] { relay.leave(); });
      std::jthread stays([&] {
        EXPECT_TRUE(relay.member(1).sum(sum));
        EXPECT_TRUE(relay.member(1).sum(sum));
        relay.leave();
      });
      relay.serve();
    }
    EXPECT_EQ(sum[0], 4);
  });
}

/// A group of one whose peer dies after the first sum.
class DyingGroup final : public TensorGroup<float> {
 public:
  std::size_t size() const override { return 1; }
  std::size_t index() const override { return 0; }
  core::Result<void> sum(std::span<float>) override {
    if (sums_++ == 0) return {};
    return core::fail(core::Errc::unavailable, "the peer died");
  }
  core::Result<void> max(std::span<float> values) override { return sum(values); }
  core::Result<void> gather(std::span<const float>, std::span<float> all, const Counts&) override {
    return sum(all);
  }
  core::Result<void> scatter_sum(std::span<const float>, std::span<float> own, const Counts&) override {
    return sum(own);
  }

 private:
  int sums_ = 0;
};

TEST(GroupRelay, NoThreadGoesOnFromWhatAnotherCouldNotDo) {
  DyingGroup group;
  GroupRelay<float> relay(group, 2);
  {
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        std::vector<float> sum{1};
        const auto summed = relay.member(t).sum(sum);
        EXPECT_FALSE(summed) << t;
        relay.leave();
      });
    }
    relay.serve();
  }
}

}  // namespace
}  // namespace troupe::apps::gpt
