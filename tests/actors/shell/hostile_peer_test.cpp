// A rank that knows the job's token, and says what it must not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "actors/roles/checkpoint_coordinator.hpp"
#include "actors/roles/coordinator.hpp"
#include "actors/roles/replica_coordinator.hpp"
#include "actors/shell/process_rank.hpp"
#include "actors/world/transport/tcp.hpp"
#include "messages/border.hpp"
#include "messages/codec.hpp"
#include "messages/wire/kinds.hpp"
#include "tests/actors/world/transport/pair.hpp"
#include "tests/messages/samples.hpp"

namespace troupe::actors {
namespace {

using messages::Role;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What every role of rank 0 hears, as "role: Kind".
class Ears {
 public:
  class Machine;

  void hear(Role role, const messages::Message& message) {
    std::lock_guard lock(mutex_);
    heard_.push_back(std::string(name_of(role)) + ": " + std::string(name_of(message)));
    const auto* lost = std::get_if<messages::PeerLost>(&message);
    if (lost && role == Role::coordinator) reasons_.push_back(lost->failure.message);
    changed_.notify_all();
  }
  /// The first reason for which the Coordinator was told that the peer is lost.
  std::string reason() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return !reasons_.empty(); });
    return reasons_.empty() ? "the peer was not lost" : reasons_.front();
  }
  /// What was heard besides the loss.
  std::vector<std::string> heard() {
    std::lock_guard lock(mutex_);
    std::vector<std::string> kept;
    for (const auto& line : heard_) {
      if (!line.ends_with(": PeerLost")) kept.push_back(line);
    }
    return kept;
  }

 private:
  std::mutex mutex_;  // guards all
  std::condition_variable changed_;
  std::vector<std::string> heard_;
  std::vector<std::string> reasons_;
};

class Ears::Machine final : public actors::Machine {
 public:
  Machine(Ears& ears, Role role) : ears_(ears), role_(role) {}
  void receive(const messages::Envelope& envelope, Outbox&) override { ears_.hear(role_, envelope.body); }
  std::string_view state() const override { return "listening"; }
  std::string waiting_for() const override { return {}; }

 private:
  Ears& ears_;
  Role role_;
};

/// Rank 0 of two as a real process has it, and rank 1, which is a program of somebody else's.
class HostilePeer : public ::testing::Test {
 protected:
  void SetUp() override {
    ProcessWorldOptions options;
    options.environment = [] {
      JobEnvironment environment;
      environment.world = {2};
      environment.job = "hostile";
      environment.epoch = {6};
      environment.token = to_hex(token_of(7));
      return environment;
    };
    options.log = [this](std::string_view line) { note(line); };
    world_ = *ProcessRank::create(std::move(options));
    ASSERT_TRUE(
        world_->open({.to_trainer = [this](const auto& e) { ears_.hear(Role::trainer, e.body); },
                      .perform = [](const auto&, const Work&) {},
                      .published_bits = [](core::BucketIndex) { return RankWorld::PublishedBits{}; }}));
    for (auto role : {Role::coordinator, Role::rank_supervisor, Role::checkpoint_writer}) {
      world_->spawn({{0}, role, 0}, std::make_unique<Ears::Machine>(ears_, role));
    }
    ASSERT_TRUE(world_->start());
    TcpOptions peer{.router = {.job = "hostile.6", .self = {1}, .world = {2}, .token = token_of(7)},
                    .port = port_};
    peer_ = *TcpNetwork::open(std::move(peer), [](NetworkEvent) {});
  }

  /// Keeps the port, which the system chose.
  void note(std::string_view line) {
    if (const auto at = line.find(" port "); line.starts_with("the control network") && at != line.npos)
      port_ = static_cast<std::uint16_t>(std::stoi(std::string(line.substr(at + 6))));
  }

  /// An envelope of small numbers, by the specification of MessagePack.
  struct Forged {
    int tag = 0;
    int from_rank = 1;
    Role from{};
    Role to{};
    std::vector<int> body;  ///< bytes
  };
  void say(const Forged& forged) {
    std::vector<std::byte> bytes;
    auto put = [&bytes](int value) { bytes.push_back(static_cast<std::byte>(value)); };
    for (int value :
         {0x96, static_cast<int>(messages::kProtocolVersion), forged.tag, 6, 0x93, forged.from_rank,
          static_cast<int>(forged.from), 0, 0x93, 0, static_cast<int>(forged.to), 0}) {
      put(value);
    }
    for (int value : forged.body) put(value);
    ASSERT_TRUE(peer_->send({0}, bytes));
  }
  /// What the job is told when the peer has said this, and has left then.
  std::string answer_to(const Forged& forged) {
    say(forged);
    EXPECT_TRUE(peer_->close());
    return ears_.reason();
  }

  Ears ears_;
  std::uint16_t port_ = 0;
  std::unique_ptr<ProcessRank> world_;
  std::unique_ptr<TcpNetwork> peer_;
};

// [7, [0.5, 0, [], [], 0]]: step 7, a verdict.
const std::vector<int> kVerdict = {0x92, 7, 0x95, 0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0, 0, 0x90, 0x90, 0};
// [rank, [true, 8, "x"]]: peer_lost.
std::vector<int> failure_of_rank(int rank) {
  return {0x92, rank, 0x94, 0xc3, 8, 0xc4, 1, 'x', 0x90};
}

TEST_F(HostilePeer, MayReportItsOwnFailure) {
  const auto reason = answer_to({21, 1, Role::rank_supervisor, Role::coordinator, failure_of_rank(1)});

  EXPECT_THAT(ears_.heard(), ElementsAre("coordinator: RankFailed"));
  EXPECT_THAT(reason, HasSubstr("rank 1 left before the job had ended"));
}

TEST_F(HostilePeer, CannotBringAVerdict) {
  const auto reason = answer_to({8, 1, Role::rank_supervisor, Role::rank_supervisor, kVerdict});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_THAT(reason, HasSubstr("VerdictArrived is what a process says to itself alone"));
}

TEST_F(HostilePeer, CannotSayThatAChunkIsStaged) {
  const auto reason = answer_to({38, 1, Role::checkpoint_writer, Role::checkpoint_writer, {0x93, 5, 6, 1}});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_THAT(reason, HasSubstr("ChunkStaged is what a process says to itself alone"));
}

TEST_F(HostilePeer, CannotSayThatAnotherIsLost) {
  const auto reason = answer_to({20, 1, Role::rank_supervisor, Role::coordinator, failure_of_rank(0)});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_THAT(reason, HasSubstr("PeerLost is what a process says to itself alone"));
}

TEST_F(HostilePeer, CannotSpeakInTheNameOfAnother) {
  const auto reason = answer_to({21, 0, Role::rank_supervisor, Role::coordinator, failure_of_rank(0)});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_EQ(reason, "rank 1 sent RankFailed in the name of rank 0");
}

TEST_F(HostilePeer, CannotReportTheFailureOfAnother) {
  const auto reason = answer_to({21, 1, Role::rank_supervisor, Role::coordinator, failure_of_rank(0)});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_EQ(reason, "rank 1 sent RankFailed about rank 0; a rank speaks for itself");
}

TEST_F(HostilePeer, CannotEndTheRunOfAnother) {
  const auto reason = answer_to({23, 1, Role::trainer, Role::rank_supervisor, {0x91, 1}});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_EQ(reason,
            "rank 1 sent Leave from trainer @ rank 1 to rank_supervisor @ rank 0, which only the "
            "rank_supervisor sends, and only to the coordinator");
}

TEST_F(HostilePeer, CannotSayThatAnothersFilesAreDurable) {
  const auto reason = answer_to({40,
                                 1,
                                 Role::checkpoint_writer,
                                 Role::checkpoint_writer,
                                 {0x94, 5, 1, 0x90, 0x94, 0xc2, 13, 0xc4, 0, 0x90}});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_THAT(reason, HasSubstr("rank 1 sent FilesDurable from checkpoint_writer @ rank 1 to "
                                "checkpoint_writer @ rank 0"));
}

TEST_F(HostilePeer, CannotPlayTheCoordinator) {
  const auto reason = answer_to({22, 1, Role::coordinator, Role::rank_supervisor, failure_of_rank(0)});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_THAT(reason, HasSubstr("rank 1 sent Fence from coordinator @ rank 1"));
}

TEST_F(HostilePeer, IsIgnoredOnceItSaidWhatItMustNot) {
  say({23, 1, Role::trainer, Role::rank_supervisor, {0x91, 1}});

  const auto reason = answer_to({21, 1, Role::rank_supervisor, Role::coordinator, failure_of_rank(1)});

  EXPECT_THAT(ears_.heard(), ElementsAre());
  EXPECT_THAT(reason, HasSubstr("rank 1 sent Leave"));
}

/// What rank 1 may say, with every number and byte of it changed now and then.
class Babble {
 public:
  std::optional<messages::Envelope> next() {
    const auto& message = samples_[random_() % samples_.size()];
    const auto& kind = messages::wire::kWireKinds[message.index()];
    auto bytes =
        encode(messages::WireEnvelope{{{1}, kind.from, 0}, {{0}, kind.to, 0}, core::Epoch{6}, message});
    for (std::uint64_t changes = random_() % 4; changes > 0; --changes) {
      bytes[12 + random_() % (bytes.size() - 12)] = static_cast<std::byte>(random_());
    }
    auto arrived = messages::incoming({.peer = {1}, .self = {0}}, bytes);
    return arrived ? std::optional(*std::move(arrived)) : std::nullopt;
  }

 private:
  std::mt19937_64 random_{20260731};
  std::vector<messages::WireMessage> samples_ = messages::sample_messages();
};

TEST(HostilePeerFuzz, BlamesNobodyButItselfWhateverItSays) {
  Babble babble;
  int heard = 0;
  for (int round = 0; round < 400; ++round) {
    CoordinatorMachine coordinator({core::WorldSize{3}});
    CheckpointCoordinatorMachine checkpoints({.world = {3}});
    ReplicaCoordinatorMachine replicas({.world = {3}, .cliques = {{{0}, {1}, {2}}}});
    // In half of the rounds the job has formed before.
    for (int rank : round % 2 == 0 ? std::vector{0, 1, 2} : std::vector<int>{}) {
      Outbox ignored;
      coordinator.receive({{}, {}, {6}, messages::Join{{rank}, {3}, 5, "a"}}, ignored);
    }
    for (int i = 0; i < 100; ++i) {
      const auto envelope = babble.next();
      if (!envelope) continue;
      ++heard;
      Outbox outbox;
      if (envelope->to.role == Role::coordinator) coordinator.receive(*envelope, outbox);
      if (envelope->to.role == Role::checkpoint_coordinator) checkpoints.receive(*envelope, outbox);
      if (envelope->to.role == Role::replica_coordinator) replicas.receive(*envelope, outbox);
      for (const auto& effect : outbox.effects()) {
        const auto* send = std::get_if<Send>(&effect);
        const auto* fence = send ? std::get_if<messages::Fence>(&send->body) : nullptr;
        ASSERT_TRUE(fence == nullptr || fence->culprit == core::Rank{1});
        ASSERT_FALSE(send && std::holds_alternative<messages::Welcome>(send->body));
        ASSERT_FALSE(std::holds_alternative<Perform>(effect)) << "no save begins by one rank's word";
      }
    }
  }
  EXPECT_GT(heard, 10000) << "a fuzz test that reaches nothing shows nothing";
}

}  // namespace
}  // namespace troupe::actors
