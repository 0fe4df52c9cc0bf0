#include "actors/session/rendezvous.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/roles/machine.hpp"
#include "core/errors.hpp"
#include "messages/border.hpp"
#include "messages/codec.hpp"

namespace troupe::actors {
namespace {

using core::Errc;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr std::size_t kPart = ControlRendezvous::kPartBytes;

/// A world of which there is nothing but the Coordinator's store, which answers at once or never.
class StoreWorld final : public RankWorld, private TrainerPatience {
 public:
  TrainerInbox inbox{1, *this};
  std::map<std::string, std::string> store;
  int posted = 0;                                  ///< messages
  int arriving = std::numeric_limits<int>::max();  ///< this many of them; later ones are lost
  std::size_t largest = 0;                         ///< bytes of a message in either direction

  core::Rank rank() const override { return {1}; }
  core::WorldSize world_size() const override { return {2}; }
  core::Epoch epoch() const override { return {1}; }
  TrainerPatience& patience() override { return *this; }
  void post(messages::Envelope envelope) override {
    measure(envelope);
    if (++posted > arriving) return;
    dispatch(envelope.body, Overloaded{[&](const messages::StoreSet& set) { store[set.key] = set.value; },
                                       [&](const messages::StoreGet& get) { answer(get); }});
  }

  const std::string& job() const override { return job_; }
  std::uint64_t unique() override { return 0; }
  gpu::Device& device() override { CHECK(false, "this world has no device"); }
  core::Result<gpu::CollectiveBackend*> collectives(gpu::Rendezvous&) override { return nullptr; }
  core::Result<gpu::CollectiveBackend*> host_collectives(gpu::Rendezvous&) override { return nullptr; }
  bool is_used() const override { return false; }
  core::Result<void> open(Hooks) override { return {}; }
  void spawn(messages::Address, std::unique_ptr<Machine>) override {}
  core::Result<void> start() override { return {}; }
  void blame(const messages::Address&, std::string) override {}
  void close() override {}
  Storage* storage() override { return nullptr; }
  void run_io(std::function<void()>) override {}
  Logger log(Subsystem) const override { return {}; }
  std::vector<WaitReport> wait_reports() override { return {}; }
  std::uint64_t message_count() const override { return 0; }

 private:
  void answer(const messages::StoreGet& get) {
    if (!store.contains(get.key)) return;
    const messages::Envelope envelope{{core::Rank{0}, messages::Role::coordinator, 0},
                                      {rank(), messages::Role::trainer, 0},
                                      epoch(),
                                      messages::StoreValue{get.request, store[get.key]}};
    measure(envelope);
    inbox.deliver(envelope);
  }
  void measure(const messages::Envelope& envelope) {
    largest = std::max(largest, messages::outgoing(envelope).size());
  }
  bool wait(std::unique_lock<std::mutex>&, const std::function<bool()>& ready,
            std::chrono::nanoseconds) override {
    return ready();
  }
  void wake() override {}

  std::string job_ = "job";
};

/// Without a period that parts could have in common.
std::string value_of(std::size_t bytes) {
  std::string value(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) value[i] = static_cast<char>(i * i / 7 + i / 256);
  return value;
}

class RendezvousTest : public testing::Test {
 protected:
  StoreWorld world;
  ControlRendezvous rendezvous{world, world.inbox};
};

TEST_F(RendezvousTest, BringsValuesOfAnySizeInAcceptableMessages) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kPart - 1, kPart, kPart + 1, 2 * kPart,
                                  2 * kPart + 1, (std::size_t{5} << 20) + 17}) {
    const auto key = std::to_string(bytes);
    ASSERT_TRUE(rendezvous.set(key, value_of(bytes)));

    const auto found = rendezvous.get(key, 1s);

    ASSERT_TRUE(found) << found.error().message;
    EXPECT_TRUE(*found == value_of(bytes)) << bytes;
  }
  EXPECT_LT(world.largest, messages::kMaxEncodedBytes / 2);
}

TEST_F(RendezvousTest, BringsAValueResemblingANumberOfParts) {
  ASSERT_TRUE(rendezvous.set("key", "3:three"));

  EXPECT_EQ(*rendezvous.get("key", 1s), "3:three");
}

TEST_F(RendezvousTest, SetsAndGetsASmallValueWithOneMessage) {
  ASSERT_TRUE(rendezvous.set("key", value_of(kPart)));
  ASSERT_TRUE(rendezvous.get("key", 1s));

  EXPECT_EQ(world.posted, 2);
}

TEST_F(RendezvousTest, StoresTheKeyOnlyAfterEveryOtherPart) {
  world.arriving = 3;

  EXPECT_FALSE(rendezvous.set("key", value_of(3 * kPart)));

  EXPECT_FALSE(world.store.contains("key"));
  EXPECT_EQ(world.posted, 5) << "no part is sent before the one before it has arrived";
}

TEST_F(RendezvousTest, RefusesAValueBeyondItsLimitAndSendsNothing) {
  const auto set = rendezvous.set("names", std::string(ControlRendezvous::kMaxValueBytes + 1, 'n'));

  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Errc::invalid_argument);
  EXPECT_THAT(set.error().message,
              HasSubstr("expected at most 67108864 bytes for 'names' in the job's store, found 67108865"));
  EXPECT_EQ(world.posted, 0);
}

TEST_F(RendezvousTest, SaysThatAValueComesFromAnotherBuild) {
  for (const char* value : {"", "12", "127.0.0.1:80", "1000000:"}) {
    world.store["key"] = value;

    const auto found = rendezvous.get("key", 1s);

    ASSERT_FALSE(found) << value;
    EXPECT_EQ(found.error().code, Errc::corrupt);
    EXPECT_THAT(found.error().message, HasSubstr("'key'"));
  }
}

}  // namespace
}  // namespace troupe::actors
